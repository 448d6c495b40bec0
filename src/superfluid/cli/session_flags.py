"""The flags of ``superfluid serve`` about sessions: where they are kept and served, and for how long."""

from pathlib import Path

import click

from superfluid.cli.commands import Flag


def session_flags(panel: str) -> list[click.Parameter]:
    """Built anew, in the order of the help page."""
    return [
        Flag(
            ["--sessions", "sessions_directory"],
            panel=panel,
            type=click.Path(path_type=Path),
            metavar="DIR",
            default_text="$SUPERFLUID_HOME/sessions",
            help="Where conversations are kept, durably. One server per directory.",
            rule="Made if it is not there, for its owner alone.",
        ),
        Flag(
            ["--no-sessions", "has_no_sessions"],
            panel=panel,
            is_flag=True,
            help="Keep nothing on the disk; the session API is off then.",
            rule="Not with `--sessions`, `--socket`, `--web`, `--http-session-ttl` or `--store-budget-gb`.",
        ),
        Flag(
            ["--socket"],
            panel=panel,
            type=click.Path(path_type=Path),
            metavar="PATH",
            default_text="$SUPERFLUID_HOME/superfluid.sock",
            help="The session API's unix socket.",
            rule="Under 108 bytes (104 on macOS). A default that is longer moves to the directory for temporary files.",
        ),
        Flag(
            ["--web"],
            panel=panel,
            metavar="ADDR:PORT",
            default_text="off",
            help="Serve the session API to programs and web pages on this machine, here.",
            rule="`127.0.0.1`, `[::1]` or `localhost` only. Port 0 takes a free one.",
        ),
        Flag(
            ["--web-origin", "web_origins"],
            panel=panel,
            multiple=True,
            metavar="URL",
            default_text="none",
            help="A web page's origin that may use --web; repeatable.",
            rule="Compared letter for letter, such as `http://localhost:5173`.",
        ),
        Flag(
            ["--http-commit-ms"],
            panel=panel,
            type=float,
            default=100.0,
            metavar="MS",
            default_text="100",
            help="How often replies to requests that named no session are written; 0 is at every token.",
            rule="0 to 10000. Sessions of the session API are always written at every token.",
        ),
        Flag(
            ["--http-session-ttl"],
            panel=panel,
            type=float,
            metavar="S",
            default_text="forever",
            help="Seconds to keep requests that named no session after their last use.",
            rule="Above 0. Sessions of the session API are never dropped.",
        ),
        Flag(
            ["--store-budget-gb"],
            panel=panel,
            type=float,
            metavar="N",
            default_text="none",
            help="Drop the oldest requests that named no session when the store is larger.",
            rule="GiB, above 0.",
        ),
        Flag(
            ["--tool-lease-ms"],
            panel=panel,
            type=int,
            default=0,
            metavar="MS",
            default_text="0, no limit",
            help="How long a tool call of a session waits for its result; 0 is for ever.",
            rule="At least 0. The deadline is recorded with the call, so it survives a restart.",
        ),
        Flag(
            ["--park/--no-park", "is_parking"],
            panel=panel,
            default=None,
            default_text="on",
            help="Keep the state behind a session's last turn on the disk, so that it goes on at once after a restart.",
            rule="Off deletes those that are there. Not with `--no-sessions`.",
        ),
        Flag(
            ["--park-budget-gb"],
            panel=panel,
            type=float,
            metavar="N",
            default_text="20",
            help="Space for the states of sessions; the least recently used go first.",
            rule="GiB, at least 0; 0 sets no bound. 1 GiB of the disk is left free in any case.",
        ),
        Flag(
            ["--prefix-disk-gb"],
            panel=panel,
            type=float,
            metavar="N",
            default_text="10",
            help="Space for the states behind requests that named no session, beside that for sessions.",
            rule="GiB, at least 0; 0 keeps none and deletes those that are there. Not with `--no-sessions`.",
        ),
    ]
