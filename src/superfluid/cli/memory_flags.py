"""The flags of ``superfluid serve`` that say what memory is used for."""

import click

from superfluid.cli.commands import Flag


def window_flags(panel: str) -> list[click.Parameter]:
    """Built anew, in the order of the help page."""
    return [
        Flag(
            ["--max-context"],
            panel=panel,
            metavar="N|auto",
            default_text="auto",
            help="The window of each lane in tokens, prompt and reply together; auto is what there is memory for.",
            rule="A number below 512 is raised to 512, with a notice. `auto` never exceeds what the model was trained "
            "for; where free memory is not known it is 8192, or an error if `auto` was asked for.",
        ),
        Flag(
            ["--kv-bits"],
            panel=panel,
            type=int,
            default=0,
            metavar="N",
            default_text="0, 16 bits",
            help="Bits of a number in the KV cache: 8 takes about half the memory of 16, 4 about a quarter.",
            rule="0, 4 or 8. Turns flash attention on, so not with `--flash-attn off`.",
        ),
    ]


def pressure_flags(panel: str) -> list[click.Parameter]:
    """Built anew, in the order of the help page."""
    return [
        Flag(
            ["--pressure-high"],
            panel=panel,
            type=int,
            default=85,
            metavar="PCT",
            default_text="85",
            help="Give kept prefixes up when this share of the memory for lanes and host cache is used.",
            rule="1 to 100.",
        ),
        Flag(
            ["--pressure-low"],
            panel=panel,
            type=int,
            default=70,
            metavar="PCT",
            default_text="70",
            help="And go on until no more than this share is.",
            rule="At least 0, below `--pressure-high`.",
        ),
        Flag(
            ["--pin-budget-pct"],
            panel=panel,
            type=int,
            default=50,
            metavar="PCT",
            default_text="50",
            help="The share of the host cache that pinned prefixes may hold; 0 records pins and holds nothing.",
            rule="0 to 100; brought down to `--pressure-low`, with a notice. The pin used longest ago gives way first.",
        ),
        Flag(
            ["--os-pressure/--no-os-pressure", "watches_os_pressure"],
            panel=panel,
            default=True,
            default_text="on",
            help="Give kept prefixes back when the system runs short of memory, and let background jobs wait.",
            rule="Linux with `/proc/pressure/memory`; elsewhere without effect.",
        ),
    ]
