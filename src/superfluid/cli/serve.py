"""``superfluid serve``: its flags, and the way from them to a running daemon."""

import importlib.util
import os
import sys
from typing import Any

import click

from superfluid.cli.commands import Command, say_note
from superfluid.cli.environment import variables_help
from superfluid.cli.key_policy import read_key_policy
from superfluid.cli.retired_flags import CONTINUOUS_BATCHING
from superfluid.cli.serve_flags import serve_parameters
from superfluid.cli.serve_settings import ServeFlags, Terminal, build_serve_config


class ServeCommand(Command):
    """``serve`` alone has a flag whose value may be left out."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _with_explicit_lanes(args))


def _with_explicit_lanes(args: list[str]) -> list[str]:
    """``--continuous-batching N`` becomes one word, and so does the flag alone, lest the model be taken for N."""
    result: list[str] = []
    words = iter(args)
    for word in words:
        if word != CONTINUOUS_BATCHING:
            result.append(word)
            continue
        following = next(words, None)
        if following is not None and following.isdecimal():
            result.append(f"{word}={following}")
        else:
            result.extend([f"{word}="] if following is None else [f"{word}=", following])
    return result


def _serve(**values: Any) -> int:
    # Here and not above: `superfluid --help` must not wait for the daemon's imports.
    from superfluid.engine_settings import usable_cores, uses_fake_engine
    from superfluid.models.source import check_model_name

    terminal = Terminal(sys.stdin.isatty() and sys.stdout.isatty(), importlib.util.find_spec("textual") is not None)
    flags = ServeFlags(**values)
    config = build_serve_config(
        flags,
        os.environ,
        cores=usable_cores(),
        note=say_note,
        terminal=terminal,
        key_policy=None if flags.key_policy is None else read_key_policy(flags.key_policy),
    )

    if not uses_fake_engine(config.model):
        check_model_name(config.model.model, pulls_mmproj=config.model.pulls_mmproj)
        if config.completion.model is not None:
            check_model_name(config.completion.model, param="--fim-model")

    from superfluid.daemon import serve

    return serve(config)


def serve_command() -> click.Command:
    """The command, built anew."""
    return ServeCommand(
        "serve",
        callback=_serve,
        params=serve_parameters(),
        options_metavar="[FLAGS]",
        epilog=variables_help(),
        short_help="Serve a model to many clients at once.",
        help=(
            "Serve MODEL to many clients at once, over the OpenAI protocol.\n\n"
            "MODEL is a GGUF file, a hub id such as org/model or org/model:Q4_K_M, or left out: then it is the small "
            "embedded model, which is fetched when first used."
        ),
    )
