"""Flags that ``superfluid serve`` once had: taken with a notice, so that old scripts go on working."""

from typing import Any

import click

from superfluid.cli.commands import say_note

# True: a value follows.
RETIRED_FLAGS = {
    "--decode-replay": True,
    "--files-dir": True,
    "--gpu-wait-timeout-ms": True,
    "--media-dir": True,
    "--metallib": True,
    "--no-baked-decode": False,
    "--no-paged-weights-retry": False,
    "--paged-kv": False,
    "--paged-weights": False,
    "--prefill-chunk": True,
    "--prefix-cache": False,
    "--prefix-cache-file": True,
    "--prefix-cache-save-interval": True,
}
CONTINUOUS_BATCHING = "--continuous-batching"


def retired_flags() -> list[click.Parameter]:
    """Built anew. They are hidden from the help page."""
    retired: list[click.Parameter] = [
        click.Option([CONTINUOUS_BATCHING, "continuous_batching"], hidden=True, callback=_note_continuous_batching)
    ]
    for name, has_value in RETIRED_FLAGS.items():
        # The same word both ways: click would invent a value for a flag and demand a name for its destination.
        kind: dict[str, Any] = {} if has_value else {"is_flag": True, "default": None}
        retired.append(click.Option([name], hidden=True, expose_value=False, callback=_note_retired, **kind))
    return retired


def _note_retired(_: click.Context, parameter: click.Parameter, value: object) -> None:
    if value:
        say_note(f"{parameter.opts[0]} is retired and has no effect; leave it out")


def _note_continuous_batching(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    if value is not None:
        say_note(f"{CONTINUOUS_BATCHING} is retired: batching is always on, and --max-batch sets the lanes")
    return value
