"""The flags of ``superfluid serve`` that say who may ask, and how often."""

from pathlib import Path

import click

from superfluid.cli.commands import Flag


def key_flags(panel: str) -> list[click.Parameter]:
    """Built anew, in the order of the help page."""
    return [
        Flag(
            ["--api-key"],
            panel=panel,
            metavar="KEY",
            default_text="none",
            help="The key that clients must send.",
            rule="Not empty. Sent as `Authorization: Bearer KEY` or `X-Api-Key: KEY`.",
        ),
        Flag(
            ["--key-policy"],
            panel=panel,
            type=click.Path(path_type=Path),
            metavar="FILE",
            default_text="none",
            help="A file of keys with names, and what each may do.",
            rule="JSON; [keys](keys.md) has its fields. Stands beside `--api-key`, which stays without limits.",
        ),
        Flag(
            ["--rate-limit", "rate_limit_rpm"],
            panel=panel,
            type=int,
            default=0,
            metavar="RPM",
            default_text="0, no limit",
            help="Requests that each address may send in a minute.",
            rule="At least 0. A key of the policy with a rate of its own is not held to it.",
        ),
    ]
