import re
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from tests.fixtures.command_line import COMMAND, clean_environment, run_superfluid
from tests.fixtures.fake_hub import FakeHub, FakeRepository, running_hub
from tests.fixtures.gguf_bytes import small_model

from superfluid.cli.main import main
from superfluid.version import __version__

COMMANDS = ["serve", "chat", "session", "media", "top", "pull", "help", "version"]


def test_no_command_shows_the_overview_on_stderr_and_exits_2(tmp_path: Path) -> None:
    ended = run_superfluid(home=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "superfluid serve ./model.gguf" in ended.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["help"]])
def test_help_shows_the_overview_on_stdout(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    listed = captured.out.partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in listed[: len(COMMANDS)]] == COMMANDS


@pytest.mark.parametrize("arguments", [["serve", "--help"], ["serve", "-h"], ["help", "serve"], ["serve", "m", "-h"]])
def test_help_of_a_command_is_the_same_however_asked_for(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("Usage: superfluid serve [FLAGS] [MODEL]\n")
    assert captured.err == ""


@pytest.mark.parametrize("arguments", [["--version"], ["-V"], ["version"]])
def test_version_is_one_line_on_stdout(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    assert capsys.readouterr() == (f"superfluid {__version__}\n", "")


@pytest.mark.parametrize("columns", [80, 200])
def test_help_fits_the_terminal_and_groups_the_flags(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    main(["serve", "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) < min(columns, 100)
    panels = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert panels == [
        "Model:",
        "Listening:",
        "Sessions:",
        "Lanes and memory:",
        "Who runs when:",
        "Guessing tokens ahead:",
        "For requests that do not say (else the model's own values):",
        "Filling in the middle (completions with a suffix):",
        "Logs and shutdown:",
        "OpenTelemetry:",
        "Other:",
    ]
    # Every panel's explanations start in the same column.
    starts = {match.start(2) for line in lines if (match := re.match(r"  (-\S.*?)  +(\S)", line))}
    assert len(starts) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["srve"], "there is no command 'srve'; the nearest is `superfluid serve`"),
        (["serv"], "there is no command 'serv'; the nearest is `superfluid serve`"),
        (["help", "verson"], "there is no command 'verson'; the nearest is `superfluid version`"),
        (["./m.gguf"], "there is no command './m.gguf'; to serve that model: superfluid serve ./m.gguf"),
        (["frobnicate"], f"there is no command 'frobnicate'; there are: {', '.join(COMMANDS)}"),
        (["--vresion"], "superfluid has no flag --vresion; the nearest is --version (`superfluid --help` lists them)"),
        (["serve", "--port", "x"], "--port: 'x' is not a valid integer"),
        (["serve", "--port"], "flag '--port' requires an argument"),
        (["serve", "--flash-attn", "so"], "--flash-attn: 'so' is not one of 'auto', 'on', 'off'"),
        (["serve", "--temperature", "3"], "--temperature must be between 0 and 2, got 3"),
        (["serve", "--threads", "100000"], "--threads 100000 is more than the"),
        (["version", "now"], "Got unexpected extra argument (now)"),
    ],
)
def test_bad_usage_is_one_line_on_stderr_and_exits_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"error: {message}")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["chat", "Hello", "you"], "superfluid chat asks for the message, or reads it from a pipe"),
        (["chat", "--temperature", "warm"], "--temperature: 'warm' is not a valid number"),
        (["chat", "--top-k", "warm"], "--top-k: 'warm' is not a valid integer"),
    ],
)
def test_bad_usage_of_the_chat_ends_with_what_is_wrong(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"error: {message}")


def test_environment_fault_is_one_line_on_stderr_and_exits_1(tmp_path: Path) -> None:
    ended = run_superfluid("pull", str(tmp_path / "absent.gguf"), home=tmp_path)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == f"error: {tmp_path / 'absent.gguf'} does not exist\n"


def test_bad_usage_in_a_process_exits_2(tmp_path: Path) -> None:
    ended = run_superfluid("serve", "--prot", "1", home=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "the nearest is --port" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["llama3.2"], 2), (["./absent.gguf"], 1), (["./absent.gguf", "--pull-no-mmproj"], 2)],
)
def test_serve_with_a_wrong_model_ends_before_it_makes_anything(
    arguments: list[str], code: int, tmp_path: Path
) -> None:
    ended = run_superfluid("serve", *arguments, "--port", "0", home=tmp_path)
    assert (ended.returncode, ended.stdout) == (code, "")
    assert ended.stderr.startswith("error: ")
    assert ended.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_bad_model_text_exits_2(tmp_path: Path) -> None:
    ended = run_superfluid("pull", "smollm2", home=tmp_path)
    assert ended.returncode == 2
    assert "neither a file nor a hub id" in ended.stderr


def test_pull_prints_the_path_alone_on_stdout(tmp_path: Path) -> None:
    hub = FakeHub(repositories={"org/model": FakeRepository(files={"m-Q8_0.gguf": small_model()})})
    with running_hub(hub):
        ended = run_superfluid("pull", "org/model", home=tmp_path, environment={"HF_ENDPOINT": hub.endpoint})
    path = Path(ended.stdout.removesuffix("\n"))
    assert ended.returncode == 0
    assert path.read_bytes() == small_model()
    assert path.is_relative_to(tmp_path / ".cache" / "huggingface" / "hub")
    assert "fetching m-Q8_0.gguf" in ended.stderr
    again = run_superfluid("pull", "org/model", "--offline", home=tmp_path)
    assert (again.returncode, again.stdout) == (0, ended.stdout)


def test_pull_of_the_embedded_model_offline_says_what_to_do(tmp_path: Path) -> None:
    ended = run_superfluid("pull", "--offline", home=tmp_path)
    assert ended.returncode == 1
    assert "run `superfluid pull` with a connection" in ended.stderr


def test_interrupted_pull_is_one_line_and_exits_1(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent_hub:
        endpoint = f"http://127.0.0.1:{silent_hub.getsockname()[1]}"
        process = subprocess.Popen(
            [*COMMAND, "pull", "org/model"],
            env=clean_environment(tmp_path) | {"HF_ENDPOINT": endpoint},
            stderr=subprocess.PIPE,
            text=True,
        )
        connection, _ = silent_hub.accept()
        with connection:
            errors = interrupted(process)
    assert process.returncode == 1
    assert errors.strip() == "error: interrupted"


def interrupted(process: "subprocess.Popen[str]") -> str:
    """What it still wrote. A signal that comes just before a call blocks is heard only when that returns: ask again."""
    while True:
        process.send_signal(signal.SIGINT)
        try:
            return process.communicate(timeout=8)[1]
        except subprocess.TimeoutExpired:
            continue


def test_help_loads_no_heavy_modules(tmp_path: Path) -> None:
    ended = run_superfluid("--help", home=tmp_path, environment={"PYTHONPROFILEIMPORTTIME": "1"})
    for module in ("asyncio", "rich", "httpx", "numpy", "starlette", "superfluid.daemon"):
        assert not re.search(rf"\| +{re.escape(module)}$", ended.stderr, re.MULTILINE), module


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a file that is always full")
@pytest.mark.parametrize("arguments", [["--help"], ["version"]])
def test_output_that_cannot_be_written_is_one_line_and_exits_1(arguments: list[str], tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [*COMMAND, *arguments], env=clean_environment(tmp_path), stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert ended.returncode == 1
    assert ended.stderr == "error: the output cannot be written: No space left on device\n"
