"""One codec under atheris: ``fuzz_guided.py payload|stream|text RUNS SEED CORPUS``. ``scripts/fuzz.py`` runs it."""

import sys
import tempfile
from pathlib import Path
from random import Random

import atheris

ROOT = Path(__file__).resolve().parents[1]
SAMPLES = 300
LIMITS = ("-max_len=4096", "-timeout=10", "-rss_limit_mb=2048", "-print_final_stats=0")


def main(arguments: list[str]) -> None:
    """Does not return: atheris ends the process, with 0 if nothing was found."""
    target, runs, seed, corpus = arguments
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]
    with atheris.instrument_imports(include=["superfluid.native"]):
        from tests.fixtures.fuzzing import codecs
    from tests.fixtures.fuzzing.frames import FrameMaker

    checks = {"payload": codecs.check_payload, "stream": codecs.check_stream, "text": codecs.check_text}
    maker = FrameMaker(Random(f"guided {seed}"))
    samples = {
        "payload": maker.payload,
        "stream": lambda: b"".join(codecs.frame(maker.payload()) for _ in range(3)),
        "text": maker.text,
    }
    for number in range(SAMPLES):
        (Path(corpus) / str(number)).write_bytes(samples[target]())
    prefix = f"-artifact_prefix={tempfile.gettempdir()}/fuzz-{target}-"
    atheris.Setup([sys.argv[0], corpus, f"-runs={runs}", f"-seed={seed}", prefix, *LIMITS], checks[target])
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
