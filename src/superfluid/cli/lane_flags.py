"""The flags of ``superfluid serve`` about lanes: how many, how long, and what memory they share."""

import click

from superfluid.cli.commands import Flag
from superfluid.cli.memory_flags import pressure_flags, window_flags


def lane_flags(panel: str) -> list[click.Parameter]:
    """Built anew, in the order of the help page."""
    return [
        Flag(
            ["--max-batch", "--max-batch-size"],
            panel=panel,
            type=int,
            metavar="N",
            default_text="8",
            help="Lanes: how many requests are generated at once.",
            rule="1 to 256.",
        ),
        *window_flags(panel),
        Flag(
            ["--max-queue"],
            panel=panel,
            type=int,
            default=512,
            metavar="N",
            default_text="512",
            help="Requests that may wait for a lane before others are turned away.",
            rule="At least 0. One request more is answered 503 with `Retry-After`.",
        ),
        Flag(
            ["--stream-interval-ms"],
            panel=panel,
            type=float,
            default=16.0,
            metavar="MS",
            default_text="16, a frame of a screen",
            help="Tokens that come faster than this are sent together; 0 sends each by itself.",
            rule="0 to 1000. A reply's first token and its end never wait.",
        ),
        Flag(
            ["--host-cache-gb"],
            panel=panel,
            default="auto",
            metavar="N|auto",
            default_text="auto",
            help="Memory for prefixes whose lane went to somebody else.",
            rule="GiB, at least 0; 0 keeps none. `auto` takes a share of what is free.",
        ),
        *pressure_flags(panel),
    ]
