"""The set-up's reading of pip: what it tells the person who waits."""

from pathlib import Path

import pytest

from scripts import bootstrap

STARTED = "  Building wheel for llama-cpp-python (pyproject.toml): started\n"
RUNNING = "  Building wheel for llama-cpp-python (pyproject.toml): still running...\n"
FINISHED = "  Building wheel for llama-cpp-python (pyproject.toml): finished with status 'done'\n"


def test_follow_when_the_engine_is_compiled_says_how_long_it_takes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "require_compiler", lambda: None)
    bootstrap.follow(["Collecting numpy\n", STARTED, RUNNING, FINISHED])
    said = capsys.readouterr().err
    assert said.count("4 to 12 minutes") == 1
    assert said.count("compiling llama.cpp took") == 1


def test_follow_when_a_wheel_is_at_hand_says_nothing_of_compiling(capsys: pytest.CaptureFixture[str]) -> None:
    bootstrap.follow(["Using cached llama_cpp_python-0.3.36-py3-none-linux_x86_64.whl\n"])
    assert "compil" not in capsys.readouterr().err


def test_follow_keeps_only_the_last_lines_for_the_error() -> None:
    lines = [f"line {index}\n" for index in range(100)]
    assert bootstrap.follow(lines) == lines[-bootstrap.KEPT_LINES :]


def test_follow_without_a_compiler_stops_with_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(bootstrap.SetupError, match="no C\\+\\+ compiler"):
        bootstrap.follow([STARTED, RUNNING])


def test_main_when_the_set_up_fails_leaves_no_stamp(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stamps = tmp_path / "stamps"

    def fail(extras: list[str]) -> None:
        raise bootstrap.SetupError(f"no {extras}")

    monkeypatch.setattr(bootstrap, "STAMPS", stamps)
    monkeypatch.setattr(bootstrap, "ensure_environment", lambda: None)
    monkeypatch.setattr(bootstrap, "install", fail)
    assert bootstrap.main(["test"]) == 1
    assert not stamps.exists()
    assert "no ['test']" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.9, "0 s"), (59.9, "59 s"), (60, "1 min 00 s"), (725.4, "12 min 05 s")]
)
def test_minutes_are_written_for_people(seconds: float, text: str) -> None:
    assert bootstrap.minutes(seconds) == text
