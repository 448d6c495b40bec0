"""``superfluid chat``: its flags. What it does is imported when it runs."""

from pathlib import Path
from typing import Any

import click

from superfluid.cli.commands import Flag
from superfluid.cli.socket_flag import ClientCommand, resolve_socket, session_id, socket_flag

_PANEL = "Flags"
_SAMPLING = "Sampling of sessions begun here (else the model's own values)"


def chat_command() -> click.Command:
    """The command, built anew."""
    return ClientCommand(
        "chat",
        callback=_chat,
        params=[*_flags(), *_sampling_flags(), socket_flag()],
        is_help_short=True,
        options_metavar="[FLAGS]",
        short_help="Talk to the model in the terminal.",
        help=(
            "Talk to the model in the terminal. The conversation is a session: it can be left and returned to, "
            "branched and edited; /help in the chat lists what there is.\n\n"
            "With text on stdin, that is the message and the reply goes to stdout: echo Hello | superfluid chat"
        ),
    )


def _chat(
    session: int | None,
    model: str | None,
    system: str | None,
    tools: Path | None,
    max_tokens: int,
    is_plain: bool,
    has_history: bool,
    socket_path: Path | None,
    **sampling: Any,
) -> int:
    from superfluid.cli.chat.loop import ChatSettings, chat
    from superfluid.cli.chat.sampling import SamplingFlags

    settings = ChatSettings(
        socket=resolve_socket(socket_path),
        session=session,
        model=model,
        system=system,
        tools=tools,
        sampling=SamplingFlags(**sampling),
        max_tokens=max_tokens,
        is_plain=is_plain,
        has_history=has_history,
    )
    return chat(settings)


def _flags() -> list[click.Parameter]:
    return [
        Flag(
            ["-s", "--session", "session"], panel=_PANEL, metavar="ID", callback=session_id,
            default_text="a new one", help="Go on with this session.",
        ),
        Flag(
            ["-m", "--model", "model"], panel=_PANEL, metavar="MODEL", default_text="the embedded model",
            help="What to serve, if no server is running and one is to be started.",
        ),
        Flag(["--system", "system"], panel=_PANEL, metavar="TEXT", help="The system message of sessions begun here."),
        Flag(
            ["--tools", "tools"], panel=_PANEL, metavar="FILE", type=click.Path(path_type=Path),
            help="Functions that the model may call, as JSON.",
        ),
        Flag(
            ["--max-tokens", "max_tokens"], panel=_PANEL, metavar="N", type=click.IntRange(1, 2**32 - 1),
            default=2**32 - 1, default_text="what the context leaves", help="The longest a reply may get.",
        ),
        Flag(["--plain", "is_plain"], panel=_PANEL, is_flag=True, help="Show replies as they are, not as Markdown."),
        Flag(
            ["--no-history", "has_history"], panel=_PANEL, is_flag=True, flag_value=False, default=True,
            help="Do not remember what is typed for the arrow keys.",
        ),
    ]  # fmt: skip


def _sampling_flags() -> list[click.Parameter]:
    def flag(name: str, metavar: str, kind: click.IntRange | click.FloatRange, meaning: str) -> Flag:
        return Flag([f"--{name}", name.replace("-", "_")], panel=_SAMPLING, metavar=metavar, type=kind, help=meaning)

    return [
        flag("temperature", "T", click.FloatRange(0, 2), "How freely to draw; 0 always takes the likeliest token."),
        flag("top-p", "P", click.FloatRange(0, 1), "Draw from the likeliest tokens that make up this share."),
        flag("top-k", "K", click.IntRange(0, 2**32 - 1), "Draw from so many of the likeliest tokens; 0 is all."),
        flag("min-p", "P", click.FloatRange(0, 1), "Leave out tokens less likely than this share of the likeliest."),
        flag("seed", "N", click.IntRange(0, 2**64 - 1), "Draw the same tokens each time."),
    ]
