"""The flags of ``superfluid serve`` that stand for what a request does not say."""

import click

from superfluid.cli.commands import Flag


def sampling_flags(panel: str) -> list[click.Parameter]:
    """Built anew, in the order of the help page."""
    return [
        Flag(
            ["--max-tokens"],
            panel=panel,
            type=int,
            metavar="N",
            default_text="what the window leaves",
            help="Tokens of a reply at most.",
            rule="At least 1.",
        ),
        Flag(
            ["--temperature"],
            panel=panel,
            type=float,
            metavar="T",
            default_text="the model's",
            is_default_shown=False,
            help="0 always takes the likeliest token.",
            rule="0 to 2.",
        ),
        Flag(
            ["--top-p"],
            panel=panel,
            type=float,
            metavar="P",
            default_text="the model's",
            is_default_shown=False,
            help="Draw from the likeliest tokens that make up this share.",
            rule="0 to 1.",
        ),
        Flag(
            ["--top-k"],
            panel=panel,
            type=int,
            metavar="K",
            default_text="the model's",
            is_default_shown=False,
            help="Draw from this many of the likeliest tokens; 0 is all.",
            rule="At least 0.",
        ),
        Flag(
            ["--min-p"],
            panel=panel,
            type=float,
            metavar="P",
            default_text="the model's",
            is_default_shown=False,
            help="Drop tokens less likely than this share of the likeliest.",
            rule="0 to 1.",
        ),
        Flag(
            ["--repeat-penalty"],
            panel=panel,
            type=float,
            metavar="R",
            default_text="the model's",
            is_default_shown=False,
            help="Above 1: what the last 64 tokens said comes less often.",
            rule="0 to 2.",
        ),
    ]
