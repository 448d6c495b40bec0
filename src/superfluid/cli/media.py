"""``superfluid media``: files that messages can show, in the server's pool."""

import mimetypes
from pathlib import Path

import click

from superfluid.cli.commands import Group
from superfluid.cli.session.command import show_overview
from superfluid.cli.socket_flag import ClientCommand, connect, json_flag, print_json, socket_flag
from superfluid.errors import EnvironmentFaultError


def media_command() -> Group:
    """The group, built anew."""
    group = Group(
        "media",
        subcommand_metavar="COMMAND",
        options_metavar="",
        invoke_without_command=True,
        callback=show_overview,
        short_help="Put images into the server's pool, and clear it.",
        help="Work on the pool of media that a running server keeps beside its sessions.",
    )
    put = ClientCommand(
        "put",
        callback=_put,
        params=[
            click.Argument(["file"], type=click.Path(path_type=Path), metavar="FILE"),
            json_flag(),
            socket_flag(),
        ],
        options_metavar="[FLAGS]",
        short_help="Store a file and print its hash.",
        help="Store FILE in the pool and print its SHA-256, by which messages name it. Storing it twice is the same.",
    )
    collect = ClientCommand(
        "gc",
        callback=_collect_garbage,
        params=[json_flag(), socket_flag()],
        options_metavar="[FLAGS]",
        short_help="Delete media that no session shows.",
        help="Delete what no session shows, and say how much was kept and removed. What was only put goes as well.",
    )
    group.add_command(put)
    group.add_command(collect)
    return group


def _put(file: Path, is_json: bool, socket_path: Path | None) -> None:
    from superfluid.native import requests, responses

    content = read_media(file)
    mime = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
    with connect(socket_path) as client:
        stored = client.ask(requests.PutMedia(content, mime), responses.Media)
    if is_json:
        print_json({"hash": stored.hash, "bytes": len(content)})
    else:
        click.echo(stored.hash)


def _collect_garbage(is_json: bool, socket_path: Path | None) -> None:
    from superfluid.native import requests, responses

    with connect(socket_path) as client:
        counts = client.ask(requests.GcMedia(), responses.Gc)
    if is_json:
        print_json({"kept": counts.kept, "removed": counts.removed})
    else:
        click.echo(f"kept {counts.kept}, removed {counts.removed}")


def read_media(file: Path) -> bytes:
    """Raises EnvironmentFaultError if it cannot be read."""
    try:
        return file.expanduser().read_bytes()
    except OSError as error:
        raise EnvironmentFaultError(f"cannot read {file}: {error.strerror}") from error
