"""A soak: clients of every kind on a real daemon with a tiny model, while workers die and adapters come and go.

Run with ``make soak``, or ``python scripts/soak.py --seconds 180 --seed 5``. The daemon is in exact mode, so every text
is compared with the one of an undisturbed run. Afterwards lanes, queue, pins, open files and memory must be as before.
Exits with 1 and says what was wrong if anything is.
"""

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clients", type=int, default=6)
    options = parser.parse_args(arguments)
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]
    from tests.fixtures.soak import Soak

    with tempfile.TemporaryDirectory(prefix="soak-") as home:
        soak = Soak(Path(home), seed=options.seed, clients=options.clients)
        try:
            soak.run(options.seconds)
        except AssertionError as error:
            print(error, file=sys.stderr)
            return 1
        print(soak.figures())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
