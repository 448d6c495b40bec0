"""The flags of ``superfluid serve`` about logs, the monitor and the end."""

from pathlib import Path

import click

from superfluid.cli.commands import Flag


def running_flags(panel: str) -> list[click.Parameter]:
    """Built anew, in the order of the help page."""
    return [
        Flag(
            ["--log-filter"],
            panel=panel,
            default="info",
            metavar="DIRECTIVE",
            default_text="info",
            help="What is logged: a level, or target=level pairs with commas between.",
            rule=(
                "Levels are `error`, `warn`, `info`, `debug`, `trace`, `off`; an example is "
                "`superfluid_daemon::scheduler=debug,info`. One that does not parse gives way to `info`, with a note."
            ),
        ),
        Flag(
            ["-v", "--verbose", "log_filter"],
            panel=panel,
            flag_value="debug",
            help="The same as --log-filter debug.",
        ),
        Flag(
            ["--log-dir", "log_directory"],
            panel=panel,
            type=click.Path(path_type=Path),
            metavar="DIR",
            default_text="stderr",
            help="Write JSON lines to files in this directory.",
            rule="64 MiB a file, the newest 8 are kept. One that cannot be used gives way to stderr, with a note.",
        ),
        Flag(
            ["--log-file"],
            panel=panel,
            type=click.Path(path_type=Path),
            metavar="PATH",
            default_text="none",
            help="Append all of stderr, the engine's too, to this file.",
            rule="A file that cannot be opened ends the start with 1.",
        ),
        Flag(
            ["--drain-timeout"],
            panel=panel,
            type=float,
            default=60.0,
            metavar="S",
            default_text="60",
            help="Seconds that running requests get at shutdown.",
            rule="At least 0.",
        ),
        Flag(
            ["--worker-timeout"],
            panel=panel,
            type=float,
            default=10.0,
            metavar="S",
            default_text="10",
            help="Seconds without a sign of life after which the engine's process is replaced.",
            rule="At least 0.1.",
        ),
        Flag(
            ["--tui/--no-tui", "wants_monitor"],
            panel=panel,
            default=None,
            default_text="on a terminal",
            help="The monitor: lanes, rates, queues and the log on this terminal.",
            rule="`--tui` needs a terminal, and the extra `superfluid-llm[tui]`.",
        ),
    ]
