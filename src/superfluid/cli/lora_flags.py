"""The flag of ``superfluid serve`` about LoRA adapters."""

import click

from superfluid.cli.commands import Flag


def lora_flags(panel: str) -> list[click.Parameter]:
    """Built anew."""
    return [
        Flag(
            ["--lora", "loras"],
            panel=panel,
            multiple=True,
            metavar="NAME=PATH",
            default_text="none",
            help="A LoRA adapter that requests can name behind the model, as MODEL:NAME; repeatable.",
            rule="A GGUF file made for the model. A path alone gives the name too. More can be loaded over HTTP.",
        ),
    ]
