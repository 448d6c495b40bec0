"""The long run of the kill matrix: SIGKILL for daemon and worker at random moments under four busy clients.

Run with ``make torture``, or ``python scripts/torture.py --kills 200 --seed 5``. A third of the kills meet llama.cpp
with a tiny model, the others the fake engine. Every piece of 20 kills has a sessions directory of its own, and after
every restart all that was acknowledged is compared byte for byte. Exits with 1 and says what is missing if anything is.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.fixtures.kill_matrix import KillMatrix

ROOT = Path(__file__).resolve().parents[1]
PIECE = 20


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", choices=("both", "fake", "llama"), default="both")
    options = parser.parse_args(arguments)
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]
    daemon_kills = worker_kills = events = 0
    started = time.monotonic()
    for number, kills in enumerate(_pieces(options.kills)):
        is_llama = options.engine == "llama" or (options.engine == "both" and number % 3 == 2)
        matrix = _piece(kills, options.seed + number, is_llama=is_llama)
        if matrix is None:
            return 1
        daemon_kills, worker_kills = daemon_kills + matrix.daemon_kills, worker_kills + matrix.worker_kills
        events += sum(map(len, matrix.told.events.values()))
    minutes = (time.monotonic() - started) / 60
    print(f"{daemon_kills} daemon and {worker_kills} worker kills in {minutes:.1f} min: {events} events, none lost")
    return 0


def _pieces(kills: int) -> list[int]:
    return [min(PIECE, kills - start) for start in range(0, kills, PIECE)]


def _piece(kills: int, seed: int, *, is_llama: bool) -> "KillMatrix | None":
    from tests.fixtures.kill_matrix import SCRIPT, KillMatrix
    from tests.fixtures.tiny_gguf import write_tiny_model

    with tempfile.TemporaryDirectory(prefix="torture-") as directory:
        home = Path(directory)
        if is_llama:
            model = write_tiny_model(home / "tiny.gguf")
            matrix = KillMatrix(home, model, "--max-batch", "4", "--max-context", "1024", seed=seed)
        else:
            model = home / "script.json"
            model.write_text(json.dumps(SCRIPT))
            matrix = KillMatrix(home, model, seed=seed)
        try:
            matrix.run(kills)
        except AssertionError as error:
            print(f"seed {seed}: {error}", file=sys.stderr)
            return None
        print(f"{'llama.cpp' if is_llama else 'fake'}, seed {seed}: {matrix.figures()}", flush=True)
        return matrix


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
