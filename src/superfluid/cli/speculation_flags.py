"""The flags of ``superfluid serve`` that say how tokens are guessed ahead."""

import click

from superfluid.cli.commands import Flag


def speculation_flags(panel: str) -> list[click.Parameter]:
    """Built anew, in the order of the help page."""
    return [*_draft_flags(panel), *_yield_flags(panel), *_gate_flags(panel)]


def _draft_flags(panel: str) -> list[click.Parameter]:
    return [
        Flag(
            ["--speculate"],
            panel=panel,
            default="off",
            metavar="HOW",
            default_text="off",
            help="Guess tokens ahead, so that several can be had in one step.",
            rule=(
                "`off`; `prompt-lookup`: what followed the same tokens further back in the conversation; "
                "`draft-model:FILE.gguf`: a smaller model with the same vocabulary guesses; `auto`: `prompt-lookup` "
                "where the model allows it. What is not known exits 2."
            ),
        ),
        Flag(
            ["--spec-draft-tokens"],
            panel=panel,
            type=int,
            metavar="N",
            default_text="4",
            help="Tokens guessed at once, to begin with.",
            rule="1 to 15.",
        ),
        Flag(
            ["--spec-adaptive/--no-spec-adaptive", "is_spec_adaptive"],
            panel=panel,
            default=None,
            default_text="on",
            help="Guess more where guesses are right, and less where they are not.",
            rule="Between 1 and 15 tokens. `SUPERFLUID_SPEC_ADAPTIVE` where neither is given.",
        ),
        Flag(
            ["--spec-max-temperature"],
            panel=panel,
            type=float,
            metavar="T",
            default_text="the model's own",
            help="Lower the temperature that the model recommends to this.",
            rule="0 to 2. Temperatures of requests and of `--temperature` stay; so does all without speculation.",
        ),
    ]


def _yield_flags(panel: str) -> list[click.Parameter]:
    return [
        Flag(
            ["--spec-min-yield"],
            panel=panel,
            type=float,
            metavar="F",
            default_text="0.75",
            help="Right guesses a draft that a request must come to, on average.",
            rule="At least 0. A request that falls short twice guesses no more. Also `SUPERFLUID_SPEC_MIN_YIELD`.",
        ),
        Flag(
            ["--spec-yield-rounds"],
            panel=panel,
            type=int,
            metavar="N",
            default_text="24",
            help="Drafts after which a request's yield is judged, each time.",
            rule="At least 1. Also `SUPERFLUID_SPEC_LANE_YIELD_ROUNDS`.",
        ),
    ]


def _gate_flags(panel: str) -> list[click.Parameter]:
    return [
        Flag(
            ["--spec-throughput-gate/--no-spec-throughput-gate", "has_spec_gate"],
            panel=panel,
            default=None,
            default_text="on",
            help="Guess only where it is measured to be faster, for each count of busy lanes.",
            rule="`SUPERFLUID_SPEC_GATE` where neither is given.",
        ),
        Flag(
            ["--spec-gate-probe-tokens"],
            panel=panel,
            type=int,
            metavar="N",
            default_text="16",
            help="Guessed tokens after which that is judged, each time.",
            rule="At least 1. A probe that goes badly ends sooner. Also `SUPERFLUID_SPEC_GATE_PROBE`.",
        ),
        Flag(
            ["--spec-min-speedup"],
            panel=panel,
            type=float,
            metavar="F",
            default_text="1.08",
            help="How many times as fast it must be.",
            rule="At least 1. Also `SUPERFLUID_SPEC_MIN_SPEEDUP`.",
        ),
        Flag(
            ["--spec-gate-reprobe"],
            panel=panel,
            type=int,
            metavar="N",
            default_text="32",
            help="Steps without guessing after it was not; doubled each time in a row.",
            rule="At least 1. Also `SUPERFLUID_SPEC_GATE_REPROBE`.",
        ),
        Flag(
            ["--spec-gate-reprobe-max"],
            panel=panel,
            type=int,
            metavar="N",
            default_text="1024",
            help="The most that these steps become.",
            rule="At least `--spec-gate-reprobe`. Also `SUPERFLUID_SPEC_GATE_REPROBE_MAX`.",
        ),
    ]
