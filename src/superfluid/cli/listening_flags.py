"""The flags of ``superfluid serve`` about the HTTP port, and who may use it."""

import click

from superfluid.cli.commands import Flag
from superfluid.cli.key_flags import key_flags


def listening_flags(panel: str) -> list[click.Parameter]:
    """Built anew, in the order of the help page."""
    return [
        Flag(
            ["--http"],
            panel=panel,
            metavar="ADDR:PORT",
            default_text="127.0.0.1:8453",
            help="Where to listen.",
            rule="An IPv6 address stands in brackets. Port 0 takes a free one. Wins over `--host` and `--port`.",
        ),
        Flag(
            ["--host"],
            panel=panel,
            metavar="ADDR",
            default_text="127.0.0.1",
            help="The address alone.",
            rule="Not empty.",
        ),
        Flag(
            ["--port"],
            panel=panel,
            type=int,
            metavar="PORT",
            default_text="8453",
            help="The port alone.",
            rule="0 to 65535; 0 takes a free one.",
        ),
        *key_flags(panel),
    ]
