"""The set-up's reading of pip: what it tells the person who waits."""

import os
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


def test_browser_is_found_by_its_usual_names_or_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(bootstrap, "_MAC_BROWSERS", ())
    assert bootstrap.find_browser() is None
    for name in ("chromium-browser", "mine"):
        (tmp_path / name).touch(mode=0o755)
    assert bootstrap.find_browser() == tmp_path / "chromium-browser"
    monkeypatch.setenv("CHROMIUM", str(tmp_path / "mine"))
    assert bootstrap.find_browser() == tmp_path / "mine"


def test_setup_that_may_not_install_a_browser_says_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(bootstrap, "_MAC_BROWSERS", ())
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    bootstrap.provide_browser()
    assert "apt-get install chromium" in capsys.readouterr().err


def test_setup_as_root_on_debian_installs_the_browser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.setattr(bootstrap, "_MAC_BROWSERS", ())
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    installer = tmp_path / "apt-get"
    browser = tmp_path / "chromium"
    installer.write_text(f"#!/bin/sh\n[ $1 = update ] || {{ : > {browser}; /bin/chmod +x {browser}; }}\n")
    installer.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    bootstrap.provide_browser()
    assert bootstrap.find_browser() == browser
    assert "apt-get install" not in capsys.readouterr().err
