"""Fuzzes the session API: both codecs, a connection's state machine, and a whole daemon on all its doors.

Run with ``make fuzz``, or ``python scripts/fuzz.py --frames 1000000 --seed 7``. Every frame is checked: a decoder gives
a value or its own error, a value survives both encodings, a connection answers in order and ends, the daemon keeps its
process, its descriptors and a clean log while a canary's conversations beside the attack go as if it were alone.
Nothing may take longer than ten seconds or two gigabytes. Prints frames and frames a second; stops at the first failure
with exit code 1, and says which seed, or which input, repeats it.
"""

import argparse
import asyncio
import faulthandler
import importlib.util
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parents[1]
HANG_SECONDS = 10.0
MEMORY_BYTES = 2 << 30
SCRIPT_STEPS = 100
DAEMON_PIECE = 20_000
# Of all frames. A frame over a socket costs many times one that is only decoded.
SHARES = {"socket": 0.30, "json": 0.25, "guided": 0.15, "connection": 0.24, "daemon": 0.06}

Part = Callable[[int, int], int]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=SHARES, action="append")
    options = parser.parse_args(arguments)
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]
    parts: dict[str, Part] = {
        "socket": fuzz_socket,
        "json": fuzz_json,
        "guided": fuzz_guided,
        "connection": fuzz_connections,
        "daemon": fuzz_daemon,
    }
    chosen = options.only or list(SHARES)
    whole = sum(SHARES[name] for name in chosen)
    total, started = 0, time.monotonic()
    for name in chosen:
        total += _timed(name, parts[name], int(options.frames * SHARES[name] / whole), options.seed)
    print(f"{total:,} frames in {time.monotonic() - started:.0f} s, nothing found", flush=True)
    return 0


def _timed(name: str, part: Part, frames: int, seed: int) -> int:
    started = time.monotonic()
    done = part(frames, seed)
    seconds = time.monotonic() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"{name}: {done:,} frames, {done / seconds:,.0f} a second, peak {peak} MB", flush=True)
    return done


# ---- codecs


def fuzz_socket(frames: int, seed: int) -> int:
    """Payloads one by one, and streams of them."""
    from tests.fixtures.fuzzing.codecs import check_payload, check_stream
    from tests.fixtures.fuzzing.frames import FrameMaker

    from superfluid.native.frames import encode_frame

    maker = FrameMaker(Random(f"socket {seed}"))
    done = 0
    while done < frames:
        with _Watched():
            for _ in range(1000):
                _check(check_payload, maker.payload())
            done += 1000
            for _ in range(20):
                stream = b"".join(encode_frame(maker.payload()) for _ in range(5))
                done += _check(check_stream, maker.damaged(stream))
    return done


def fuzz_json(frames: int, seed: int) -> int:
    from tests.fixtures.fuzzing.codecs import check_long_text, check_text
    from tests.fixtures.fuzzing.frames import FrameMaker, long_text

    maker = FrameMaker(Random(f"json {seed}"))
    done = 0
    while done < frames:
        with _Watched():
            for _ in range(1000):
                _check(check_text, maker.text())
            _check(check_long_text, long_text(maker))
            done += 1001
    return done


def _check(check: Callable[[bytes], object], data: bytes) -> int:
    try:
        return int(check(data) or 0)  # type: ignore[call-overload,no-any-return]
    except BaseException:
        place = Path(tempfile.gettempdir()) / f"fuzz-{check.__name__}-{time.time_ns()}"
        place.write_bytes(data)
        print(f"{check.__name__} failed on {len(data)} bytes, kept in {place}", file=sys.stderr)
        raise


class _Watched:
    """Ends the process, with every thread's place, if what is inside takes too long; bounds the memory it may take."""

    def __enter__(self) -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)

    def __exit__(self, *_: object) -> None:
        faulthandler.cancel_dump_traceback_later()
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def fuzz_guided(frames: int, seed: int) -> int:
    """Both codecs by atheris, which looks for inputs that reach new code. It ends its process, so it has its own."""
    if importlib.util.find_spec("atheris") is None:
        raise SystemExit(
            "atheris is not installed here (it has wheels for Linux only): leave this part out with --only"
        )
    done = 0
    for target in ("payload", "stream", "text"):
        with tempfile.TemporaryDirectory(prefix="fuzz-corpus-") as corpus:
            program = str(ROOT / "scripts" / "fuzz_guided.py")
            command = [sys.executable, program, target, str(frames // 3), str(seed), corpus]
            run = subprocess.run(command, capture_output=True, text=True, check=False)
        counted = re.findall(r"Done (\d+) runs", run.stderr)
        if run.returncode != 0 or not counted:
            raise SystemExit(f"atheris, {target}:\n{run.stderr[-4000:]}")
        done += int(counted[-1])
    return done


# ---- connections


def fuzz_connections(frames: int, seed: int) -> int:
    """Long scripts against connections of both encodings, each with a canary connection beside it."""
    return asyncio.run(_fuzz_connections(frames, seed))


async def _fuzz_connections(frames: int, seed: int) -> int:
    from tests.fixtures.fuzzing.conversation import make_script, play
    from tests.fixtures.fuzzing.frames import FrameMaker

    from superfluid.native.encodings import socket_encoding, web_encoding

    done, number = 0, 0
    while done < frames:
        is_json = number % 2 == 0
        maker = FrameMaker(Random(f"connection {seed} {number}"), (2, 3))
        script = make_script(maker, SCRIPT_STEPS, is_json=is_json)
        try:
            played = await play(script, web_encoding() if is_json else socket_encoding())
        except BaseException:
            print(f"connection: seed {seed}, script {number}, {'JSON' if is_json else 'postcard'}", file=sys.stderr)
            raise
        done += played.frames
        number += 1
    return done


# ---- the daemon


def fuzz_daemon(frames: int, seed: int) -> int:
    """Real daemons on the fake engine, a piece of the frames each."""
    from tests.fixtures.fuzzing.daemon import Figures, attack

    whole = Figures()
    while whole.frames < frames:
        with tempfile.TemporaryDirectory(prefix="fuzz-") as directory:
            piece = min(DAEMON_PIECE, frames - whole.frames)
            whole.add(attack(Path(directory), piece, seed))
        seed += 1
    print(
        f"daemon: {whole.replies:,} replies; {whole.songs:,} conversations of the canary, the slowest "
        f"{whole.slowest_song_seconds:.2f} s; the daemon's peak {whole.peak_megabytes} MB"
    )
    return whole.frames


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
