"""The flags of ``superfluid serve`` about requests to fill in the middle."""

import click

from superfluid.cli.commands import Flag


def infill_flags(panel: str) -> list[click.Parameter]:
    """Built anew, in the order of the help page."""
    return [
        Flag(
            ["--fim-model"],
            panel=panel,
            metavar="MODEL",
            default_text="the served model",
            help="Another model that fills in the middle, loaded beside the served one.",
            rule=(
                "A GGUF file, or `org/model[:quant]` from the hub, whose vocabulary has the tokens for it; with "
                "`--runtime fake` a script of that engine. It has a process, lanes and sampling defaults of its own."
            ),
        ),
        Flag(
            ["--fim-max-context"],
            panel=panel,
            type=int,
            metavar="N",
            default_text="what it was trained for, up to 8192",
            help="The window of each of its lanes in tokens.",
            rule="At least 512. Only with `--fim-model`.",
        ),
        Flag(
            ["--fim-max-batch"],
            panel=panel,
            type=int,
            metavar="N",
            default_text="2",
            help="Its lanes.",
            rule="1 to 256. Only with `--fim-model`.",
        ),
        Flag(
            ["--completion-rate"],
            panel=panel,
            type=float,
            default=10.0,
            metavar="F",
            default_text="10",
            help="How many each client may ask for in a second; 0 is any number.",
            rule=(
                "0, or at least 0.001. A client is a connection of the session API, all of `/web/rpc`, or on the HTTP "
                "routes an address with its key."
            ),
        ),
        Flag(
            ["--completion-burst"],
            panel=panel,
            type=int,
            default=20,
            metavar="N",
            default_text="20",
            help="How many of them at once, after a pause.",
            rule="At least 1.",
        ),
        Flag(
            ["--completion-deadline-ms", "--request-timeout", "completion_deadline_ms"],
            panel=panel,
            type=int,
            default=0,
            metavar="MS",
            default_text="0, none",
            help="Give up on one that takes longer, the wait for a lane included.",
            rule="At least 0. It is then answered as expired, without text. `--request-timeout` is the same.",
        ),
    ]
