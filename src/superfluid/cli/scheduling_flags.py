"""The flags of ``superfluid serve`` that say who runs when."""

import click

from superfluid.cli.commands import Flag


def scheduling_flags(panel: str) -> list[click.Parameter]:
    """Built anew, in the order of the help page."""
    return [*_class_flags(panel), *_tick_flags(panel)]


def _class_flags(panel: str) -> list[click.Parameter]:
    return [
        Flag(
            ["--http-default-qos"],
            panel=panel,
            default="agent",
            metavar="CLASS",
            default_text="agent",
            help="The class of HTTP requests that name none.",
            rule="`interactive`, `completion`, `agent`, `background`, best first; also their numbers 0 to 3.",
        ),
        Flag(
            ["--no-http-qos-header", "has_no_qos_header"],
            panel=panel,
            is_flag=True,
            help="Ignore the headers with which a request chooses its class.",
            rule="Those are `x-superfluid-qos` and `x-superfluid-batch-invariant`.",
        ),
        Flag(
            ["--http-allow-batch-invariant", "allows_batch_invariant"],
            panel=panel,
            is_flag=True,
            help="Let a request ask to run alone, with everybody else waiting.",
            rule="With `x-superfluid-batch-invariant: true`. Not with `--no-http-qos-header`.",
        ),
        Flag(
            ["--class-lanes"],
            panel=panel,
            metavar="CLASS=N,...",
            default_text="all lanes for all",
            help="Lanes that the requests of a class may have at once.",
            rule="Each class once, 1 to the number of lanes: `agent=6,background=2`.",
        ),
        Flag(
            ["--starvation-ticks"],
            panel=panel,
            type=int,
            default=8,
            metavar="N",
            default_text="8",
            help="Ticks of waiting that lift a request by one class.",
            rule="At least 1. A tick is counted as `--tick-target-ms` of the engine's time.",
        ),
    ]


def _tick_flags(panel: str) -> list[click.Parameter]:
    return [
        Flag(
            ["--tick-target-ms"],
            panel=panel,
            type=float,
            default=400.0,
            metavar="MS",
            default_text="400",
            help="How long running streams may wait for a piece of somebody's prompt.",
            rule="1 to 60000. A quarter of it while an interactive request or a completion is being answered.",
        ),
        Flag(
            ["--prefill-budget"],
            panel=panel,
            type=int,
            default=0,
            metavar="N",
            default_text="0, what fits the target",
            help="Prompt tokens in a tick at most.",
            rule="0, or brought to between 64 and 4096, with a notice.",
        ),
        Flag(
            ["--tick-decode-budget"],
            panel=panel,
            type=int,
            default=0,
            metavar="N",
            default_text="0, one for every lane",
            help="Tokens in a tick that all running replies together may get.",
            rule="At least 0.",
        ),
    ]
