import io

import pytest

from superfluid.models.progress import BarProgress, LineProgress, format_bytes, progress_for


def test_line_progress_of_a_transfer_prints_each_tenth_once() -> None:
    stream = io.StringIO()
    progress = LineProgress(stream)
    progress.begin("m.gguf", 2_000_000)
    for done in (0, 100_000, 250_000, 260_000, 1_000_000, 2_000_000, 2_000_000):
        progress.update(done)
    progress.end()
    assert stream.getvalue().splitlines() == [
        "fetching m.gguf, 2.0 MB",
        "fetching m.gguf: 10 %",
        "fetching m.gguf: 50 %",
        "fetching m.gguf: 100 %",
    ]


def test_line_progress_of_unknown_size_prints_the_start_only() -> None:
    stream = io.StringIO()
    progress = LineProgress(stream)
    progress.begin("m.gguf", None)
    progress.update(5)
    assert stream.getvalue() == "fetching m.gguf\n"


def test_bar_progress_shows_label_and_size_and_ends_twice() -> None:
    stream = io.StringIO()
    progress = BarProgress(stream)
    progress.begin("a-model-with-a-name-that-is-far-too-long.gguf", 2_000_000)
    progress.update(2_000_000)
    progress.note("checking [m]")
    progress.end()
    progress.end()
    assert "2.0/2.0 MB" in stream.getvalue()
    assert "checking [m]" in stream.getvalue()
    assert "far-too-long.gguf" in stream.getvalue()


def test_progress_for_a_pipe_prints_lines() -> None:
    assert isinstance(progress_for(io.StringIO()), LineProgress)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"), (999, "999 bytes"), (1_000, "1.0 kB"), (98_362_432, "98 MB"), (999_600_000, "1.0 GB"),
        (4_700_000_000, "4.7 GB"), (9_960_000_000, "10 GB"), (2_500_000_000_000, "2.5 TB"),
    ],
)  # fmt: skip
def test_format_bytes_reads_well(count: int, text: str) -> None:
    assert format_bytes(count) == text
