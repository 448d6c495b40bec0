"""The flags of ``superfluid serve`` that say which model, and what computes it."""

import click

from superfluid.cli.commands import Flag
from superfluid.cli.lora_flags import lora_flags


def model_flags(panel: str) -> list[click.Parameter]:
    """Built anew, in the order of the help page."""
    return [
        click.Argument(["models"], nargs=-1, metavar="[MODEL]"),
        Flag(
            ["-m", "--model", "model_flags"],
            panel=panel,
            multiple=True,
            metavar="MODEL",
            default_text="the embedded model",
            help="The model, if it is not given as a bare word.",
            rule="A GGUF file (of a split model any part), or `org/model[:quant]` from the hub.",
        ),
        Flag(
            ["--offline", "is_offline"],
            panel=panel,
            is_flag=True,
            help="Download nothing: use what is on this machine.",
        ),
        Flag(
            ["--mmproj"],
            panel=panel,
            metavar="PATH|none",
            default_text="the one beside the model",
            help="The projector that lets the model see images.",
            rule=(
                "A GGUF file, or `none`. Left out: a file beside the model whose name begins with `mmproj`, or the one "
                "that a pull has brought along; a model that it does not fit is served without."
            ),
        ),
        Flag(
            ["--pull-no-mmproj", "is_pulled_without_mmproj"],
            panel=panel,
            is_flag=True,
            help="Do not fetch the projector with a model from the hub.",
            rule="Only with a hub id.",
        ),
        *lora_flags(panel),
        Flag(
            ["--runtime", "runtimes"],
            panel=panel,
            multiple=True,
            metavar="ID",
            default_text="auto",
            help="llamacpp, or fake: a toy that answers at once, for trying out clients.",
            rule="`auto`, `llamacpp` (also `llama.cpp`, `llama-cpp`), `fake`; `MODEL=ID` too. The last one counts.",
        ),
        Flag(
            ["--threads"],
            panel=panel,
            type=int,
            metavar="N",
            default_text="the cores",
            help="Threads the engine computes with.",
            rule="From 1 to the number of cores.",
        ),
        Flag(
            ["--threads-adapt/--no-threads-adapt", "adapts_threads"],
            panel=panel,
            default=True,
            default_text="on",
            help="Compute with fewer threads while other programs take cores.",
            rule="Without effect with one thread. With `--flash-attn off` replies are the same, bit for bit.",
        ),
        Flag(
            ["--gpu-layers"],
            panel=panel,
            type=int,
            default=-1,
            metavar="N",
            default_text="all",
            help="Layers to put on the GPU, if there is one; -1 is all.",
            rule="At least -1. Without effect on a build of llama.cpp that knows no GPU.",
        ),
        Flag(
            ["--flash-attn", "flash_attention"],
            panel=panel,
            type=click.Choice(["auto", "on", "off"]),
            default="auto",
            metavar="MODE",
            default_text="auto",
            help="auto, on or off; off is the exact mode: warm and cold prompts give the same tokens, bit for bit.",
            rule="`auto`, `on`, `off`.",
        ),
    ]
