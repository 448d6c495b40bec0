from pathlib import Path

import pytest

from superfluid.cli.retired_flags import RETIRED_FLAGS
from superfluid.cli.serve import serve_command
from superfluid.cli.serve_settings import ServeFlags
from superfluid.errors import UsageError


def parsed(*arguments: str) -> ServeFlags:
    return ServeFlags(**serve_command().make_context("serve", list(arguments)).params)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["m.gguf"], ServeFlags(models=("m.gguf",))),
        (["--model", "m.gguf"], ServeFlags(model_flags=("m.gguf",))),
        (["--model=m.gguf", "--port=1"], ServeFlags(model_flags=("m.gguf",), port=1)),
        (["m.gguf", "--port", "1"], ServeFlags(models=("m.gguf",), port=1)),
        (["--port", "1", "m.gguf"], ServeFlags(models=("m.gguf",), port=1)),
        (["--port", "1", "--port=2"], ServeFlags(port=2)),
        (["--gpu-layers", "-1", "--temperature", "0"], ServeFlags(gpu_layers=-1, temperature=0.0)),
        (["--max-batch-size", "3"], ServeFlags(max_batch=3)),
        (["--max-batch", "3", "--max-batch-size=4"], ServeFlags(max_batch=4)),
        (["-v"], ServeFlags(log_filter="debug")),
        (["--verbose"], ServeFlags(log_filter="debug")),
        (["-v", "--log-filter", "warn"], ServeFlags(log_filter="warn")),
        (["--log-filter", "warn", "-v"], ServeFlags(log_filter="debug")),
        (["--no-tui"], ServeFlags(wants_monitor=False)),
        (["--tui"], ServeFlags(wants_monitor=True)),
        (["--offline", "--flash-attn", "off"], ServeFlags(is_offline=True, flash_attention="off")),
        (["--runtime", "fake", "--runtime=auto"], ServeFlags(runtimes=("fake", "auto"))),
        (["--log-dir", "d", "--log-file=f"], ServeFlags(log_directory=Path("d"), log_file=Path("f"))),
        (["--max-context", "auto", "--host-cache-gb", "2.5"], ServeFlags(max_context="auto", host_cache_gb="2.5")),
        (["--continuous-batching", "4", "m"], ServeFlags(models=("m",), continuous_batching="4")),
        (["--continuous-batching=4"], ServeFlags(continuous_batching="4")),
        (["--continuous-batching", "m"], ServeFlags(models=("m",), continuous_batching="")),
        (["--continuous-batching", "--port", "1"], ServeFlags(port=1, continuous_batching="")),
        (["m", "--continuous-batching"], ServeFlags(models=("m",), continuous_batching="")),
        (["--", "-odd.gguf"], ServeFlags(models=("-odd.gguf",))),
    ],
)
def test_serve_arguments_are_parsed_as_written(arguments: list[str], expected: ServeFlags) -> None:
    assert parsed(*arguments) == expected


@pytest.mark.parametrize(("name", "has_value"), RETIRED_FLAGS.items())
def test_serve_retired_flag_is_taken_with_a_notice(
    name: str, has_value: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert parsed(name, *(["some"] if has_value else []), "m.gguf") == ServeFlags(models=("m.gguf",))
    assert capsys.readouterr().err == f"note: {name} is retired and has no effect; leave it out\n"


def test_serve_without_retired_flags_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    parsed("m.gguf")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("arguments", "written", "nearest"),
    [
        (["--max-bach", "3"], "--max-bach", "--max-batch"),
        (["--max-bach=3"], "--max-bach", "--max-batch"),
        (["-max-batch", "3"], "-max-batch", "--max-batch"),
        (["--temp", "1"], "--temp", "--temperature"),
        (["m.gguf", "--prot=1"], "--prot", "--port"),
        (["--flash_attn", "on"], "--flash_attn", "--flash-attn"),
        (["--no-tuu"], "--no-tuu", "--no-tui"),
    ],
)
def test_serve_unknown_flag_is_met_with_the_nearest(arguments: list[str], written: str, nearest: str) -> None:
    with pytest.raises(UsageError) as refused:
        parsed(*arguments)
    assert f"no flag {written}; the nearest is {nearest} " in refused.value.message


@pytest.mark.parametrize("arguments", [["-m", "m.gguf"], ["-m=m.gguf"], ["-mm.gguf"], ["--model", "m.gguf"]])
def test_serve_takes_its_model_after_the_short_flag_too(arguments: list[str]) -> None:
    assert parsed(*arguments) == ServeFlags(model_flags=("m.gguf",))


@pytest.mark.parametrize("arguments", [["--completely-different"], ["-x"]])
def test_serve_unknown_flag_like_no_other_points_at_the_help(arguments: list[str]) -> None:
    with pytest.raises(UsageError, match=r"it has none like it \(`serve --help` lists them\)"):
        parsed(*arguments)


def test_serve_unknown_flag_is_not_met_with_a_retired_one() -> None:
    with pytest.raises(UsageError, match="none like it"):
        parsed("--metallibs")
