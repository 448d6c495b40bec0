"""``superfluid pull``: fetches a model ahead of time, so that a later start needs no network. Prints where it lies."""

import os
import sys

import click

from superfluid.cli.commands import Command, Flag


def pull_command() -> click.Command:
    """The command, built anew."""
    return Command(
        "pull",
        callback=_pull,
        params=[
            click.Argument(["model"], required=False, metavar="[MODEL]"),
            Flag(
                ["--offline", "is_offline"],
                panel="Flags",
                is_flag=True,
                help="Download nothing: only check that it is here.",
            ),
            Flag(
                ["--pull-no-mmproj", "is_pulled_without_mmproj"],
                panel="Flags",
                is_flag=True,
                help="Leave out the projector that lets the model see images.",
            ),
        ],
        options_metavar="[FLAGS]",
        short_help="Fetch a model ahead of time.",
        help=(
            "Fetch MODEL, check it and print the path of its first file.\n\n"
            "MODEL is what `serve` takes; left out, it is the embedded model."
        ),
    )


def _pull(model: str | None, is_offline: bool, is_pulled_without_mmproj: bool) -> None:
    from superfluid.config import home_directory, hub_settings
    from superfluid.models.progress import progress_for
    from superfluid.models.source import resolve_model

    found = resolve_model(
        model,
        hub_settings(os.environ),
        home_directory(os.environ),
        progress_for(sys.stderr),
        is_offline=is_offline,
        pulls_mmproj=not is_pulled_without_mmproj,
    )
    click.echo(str(found.path))
