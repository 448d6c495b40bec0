"""The flags of ``superfluid serve``, panel by panel, as the help page and the settings page show them."""

from pathlib import Path
from typing import Any

import click

from superfluid.cli.commands import Flag, say_note
from superfluid.cli.infill_flags import infill_flags
from superfluid.cli.key_flags import key_flags
from superfluid.cli.lora_flags import lora_flags
from superfluid.cli.memory_flags import pressure_flags, window_flags
from superfluid.cli.otlp_flags import otlp_flags
from superfluid.cli.scheduling_flags import scheduling_flags
from superfluid.cli.speculation_flags import speculation_flags

MODEL, LISTENING, SESSIONS, LANES, SCHEDULING, SPECULATION, SAMPLING, INFILL, RUNNING = (
    "Model",
    "Listening",
    "Sessions",
    "Lanes and memory",
    "Who runs when",
    "Guessing tokens ahead",
    "For requests that do not say (else the model's own values)",
    "Filling in the middle (completions with a suffix)",
    "Logs and shutdown",
)

# Flags of earlier versions: taken with a notice, so that old scripts go on working. True: a value follows.
RETIRED_FLAGS = {
    "--decode-replay": True,
    "--files-dir": True,
    "--gpu-wait-timeout-ms": True,
    "--media-dir": True,
    "--metallib": True,
    "--no-baked-decode": False,
    "--no-paged-weights-retry": False,
    "--paged-kv": False,
    "--paged-weights": False,
    "--prefill-chunk": True,
    "--prefix-cache": False,
    "--prefix-cache-file": True,
    "--prefix-cache-save-interval": True,
}
CONTINUOUS_BATCHING = "--continuous-batching"


def serve_parameters() -> list[click.Parameter]:
    """All of them, built anew, in the order of the help page."""
    return [
        *_model_flags(),
        *_listening_flags(),
        *_session_flags(),
        *_lane_flags(),
        *scheduling_flags(SCHEDULING),
        *speculation_flags(SPECULATION),
        *_sampling_flags(),
        *infill_flags(INFILL),
        *_running_flags(),
        *otlp_flags(),
        *_retired_flags(),
    ]


def _model_flags() -> list[click.Parameter]:
    return [
        click.Argument(["models"], nargs=-1, metavar="[MODEL]"),
        Flag(
            ["--model", "model_flags"],
            panel=MODEL,
            multiple=True,
            metavar="MODEL",
            default_text="the embedded model",
            help="The model, if it is not given as a bare word.",
            rule="A GGUF file (of a split model any part), or `org/model[:quant]` from the hub.",
        ),
        Flag(
            ["--offline", "is_offline"],
            panel=MODEL,
            is_flag=True,
            help="Download nothing: use what is on this machine.",
        ),
        Flag(
            ["--mmproj"],
            panel=MODEL,
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
            panel=MODEL,
            is_flag=True,
            help="Do not fetch the projector with a model from the hub.",
            rule="Only with a hub id.",
        ),
        *lora_flags(MODEL),
        Flag(
            ["--runtime", "runtimes"],
            panel=MODEL,
            multiple=True,
            metavar="ID",
            default_text="auto",
            help="llamacpp, or fake: a toy that answers at once, for trying out clients.",
            rule="`auto`, `llamacpp` (also `llama.cpp`, `llama-cpp`), `fake`; `MODEL=ID` too. The last one counts.",
        ),
        Flag(
            ["--threads"],
            panel=MODEL,
            type=int,
            metavar="N",
            default_text="the cores",
            help="Threads the engine computes with.",
            rule="From 1 to the number of cores.",
        ),
        Flag(
            ["--threads-adapt/--no-threads-adapt", "adapts_threads"],
            panel=MODEL,
            default=False,
            default_text="off",
            help="Decode with one thread fewer while another program takes a core.",
            rule="Without effect with one thread. Replies are the same, bit for bit.",
        ),
        Flag(
            ["--gpu-layers"],
            panel=MODEL,
            type=int,
            default=-1,
            metavar="N",
            default_text="all",
            help="Layers to put on the GPU, if there is one; -1 is all.",
            rule="At least -1. Without effect on a build of llama.cpp that knows no GPU.",
        ),
        Flag(
            ["--flash-attn", "flash_attention"],
            panel=MODEL,
            type=click.Choice(["auto", "on", "off"]),
            default="auto",
            metavar="MODE",
            default_text="auto",
            help="auto, on or off; off is the exact mode: warm and cold prompts give the same tokens, bit for bit.",
            rule="`auto`, `on`, `off`.",
        ),
    ]


def _listening_flags() -> list[click.Parameter]:
    return [
        Flag(
            ["--http"],
            panel=LISTENING,
            metavar="ADDR:PORT",
            default_text="127.0.0.1:8453",
            help="Where to listen.",
            rule="An IPv6 address stands in brackets. Port 0 takes a free one. Wins over `--host` and `--port`.",
        ),
        Flag(
            ["--host"],
            panel=LISTENING,
            metavar="ADDR",
            default_text="127.0.0.1",
            help="The address alone.",
            rule="Not empty.",
        ),
        Flag(
            ["--port"],
            panel=LISTENING,
            type=int,
            metavar="PORT",
            default_text="8453",
            help="The port alone.",
            rule="0 to 65535; 0 takes a free one.",
        ),
        *key_flags(LISTENING),
    ]


def _session_flags() -> list[click.Parameter]:
    return [
        Flag(
            ["--sessions", "sessions_directory"],
            panel=SESSIONS,
            type=click.Path(path_type=Path),
            metavar="DIR",
            default_text="$SUPERFLUID_HOME/sessions",
            help="Where conversations are kept, durably. One server per directory.",
            rule="Made if it is not there, for its owner alone.",
        ),
        Flag(
            ["--no-sessions", "has_no_sessions"],
            panel=SESSIONS,
            is_flag=True,
            help="Keep nothing on the disk; the session API is off then.",
            rule="Not with `--sessions`, `--socket` or `--web`.",
        ),
        Flag(
            ["--socket"],
            panel=SESSIONS,
            type=click.Path(path_type=Path),
            metavar="PATH",
            default_text="$SUPERFLUID_HOME/superfluid.sock",
            help="The session API's unix socket.",
            rule="Under 108 bytes (104 on macOS). A default that is longer moves to the directory for temporary files.",
        ),
        Flag(
            ["--web"],
            panel=SESSIONS,
            metavar="ADDR:PORT",
            default_text="off",
            help="Serve the session API to programs and web pages on this machine, here.",
            rule="`127.0.0.1`, `[::1]` or `localhost` only. Port 0 takes a free one.",
        ),
        Flag(
            ["--web-origin", "web_origins"],
            panel=SESSIONS,
            multiple=True,
            metavar="URL",
            default_text="none",
            help="A web page's origin that may use --web; repeatable.",
            rule="Compared letter for letter, such as `http://localhost:5173`.",
        ),
        Flag(
            ["--http-commit-ms"],
            panel=SESSIONS,
            type=float,
            default=100.0,
            metavar="MS",
            default_text="100",
            help="How often replies to requests that named no session are written; 0 is at every token.",
            rule="0 to 10000. Sessions of the session API are always written at every token.",
        ),
        Flag(
            ["--http-session-ttl"],
            panel=SESSIONS,
            type=float,
            metavar="S",
            default_text="forever",
            help="Seconds to keep requests that named no session after their last use.",
            rule="Above 0. Sessions of the session API are never dropped.",
        ),
        Flag(
            ["--store-budget-gb"],
            panel=SESSIONS,
            type=float,
            metavar="N",
            default_text="none",
            help="Drop the oldest requests that named no session when the store is larger.",
            rule="GiB, above 0.",
        ),
        Flag(
            ["--tool-lease-ms"],
            panel=SESSIONS,
            type=int,
            default=0,
            metavar="MS",
            default_text="0, no limit",
            help="How long a tool call of a session waits for its result; 0 is for ever.",
            rule="At least 0. The deadline is recorded with the call, so it survives a restart.",
        ),
        Flag(
            ["--park/--no-park", "is_parking"],
            panel=SESSIONS,
            default=None,
            default_text="on",
            help="Keep the state behind a session's last turn on the disk, so that it goes on at once after a restart.",
            rule="Off deletes those that are there. Not with `--no-sessions`.",
        ),
        Flag(
            ["--park-budget-gb"],
            panel=SESSIONS,
            type=float,
            metavar="N",
            default_text="20",
            help="Space for the states of sessions; the least recently used go first.",
            rule="GiB, at least 0; 0 sets no bound. 1 GiB of the disk is left free in any case.",
        ),
        Flag(
            ["--prefix-disk-gb"],
            panel=SESSIONS,
            type=float,
            metavar="N",
            default_text="10",
            help="Space for the states behind requests that named no session, beside that for sessions.",
            rule="GiB, at least 0; 0 keeps none and deletes those that are there. Not with `--no-sessions`.",
        ),
    ]


def _lane_flags() -> list[click.Parameter]:
    return [
        Flag(
            ["--max-batch", "--max-batch-size"],
            panel=LANES,
            type=int,
            metavar="N",
            default_text="8",
            help="Lanes: how many requests are generated at once.",
            rule="1 to 256.",
        ),
        *window_flags(LANES),
        Flag(
            ["--max-queue"],
            panel=LANES,
            type=int,
            default=512,
            metavar="N",
            default_text="512",
            help="Requests that may wait for a lane before others are turned away.",
            rule="At least 0. One request more is answered 503 with `Retry-After`.",
        ),
        Flag(
            ["--stream-interval-ms"],
            panel=LANES,
            type=float,
            default=16.0,
            metavar="MS",
            default_text="16, a frame of a screen",
            help="Tokens that come faster than this are sent together; 0 sends each by itself.",
            rule="0 to 1000. A reply's first token and its end never wait.",
        ),
        Flag(
            ["--host-cache-gb"],
            panel=LANES,
            default="auto",
            metavar="N|auto",
            default_text="auto",
            help="Memory for prefixes whose lane went to somebody else.",
            rule="GiB, at least 0; 0 keeps none. `auto` takes a share of what is free.",
        ),
        *pressure_flags(LANES),
    ]


def _sampling_flags() -> list[click.Parameter]:
    return [
        Flag(
            ["--max-tokens"],
            panel=SAMPLING,
            type=int,
            metavar="N",
            default_text="what the window leaves",
            help="Tokens of a reply at most.",
            rule="At least 1.",
        ),
        Flag(
            ["--temperature"],
            panel=SAMPLING,
            type=float,
            metavar="T",
            default_text="the model's",
            is_default_shown=False,
            help="0 always takes the likeliest token.",
            rule="0 to 2.",
        ),
        Flag(
            ["--top-p"],
            panel=SAMPLING,
            type=float,
            metavar="P",
            default_text="the model's",
            is_default_shown=False,
            help="Draw from the likeliest tokens that make up this share.",
            rule="0 to 1.",
        ),
        Flag(
            ["--top-k"],
            panel=SAMPLING,
            type=int,
            metavar="K",
            default_text="the model's",
            is_default_shown=False,
            help="Draw from this many of the likeliest tokens; 0 is all.",
            rule="At least 0.",
        ),
        Flag(
            ["--min-p"],
            panel=SAMPLING,
            type=float,
            metavar="P",
            default_text="the model's",
            is_default_shown=False,
            help="Drop tokens less likely than this share of the likeliest.",
            rule="0 to 1.",
        ),
        Flag(
            ["--repeat-penalty"],
            panel=SAMPLING,
            type=float,
            metavar="R",
            default_text="the model's",
            is_default_shown=False,
            help="Above 1: what the last 64 tokens said comes less often.",
            rule="0 to 2.",
        ),
    ]


def _running_flags() -> list[click.Parameter]:
    return [
        Flag(
            ["--log-filter"],
            panel=RUNNING,
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
            panel=RUNNING,
            flag_value="debug",
            help="The same as --log-filter debug.",
        ),
        Flag(
            ["--log-dir", "log_directory"],
            panel=RUNNING,
            type=click.Path(path_type=Path),
            metavar="DIR",
            default_text="stderr",
            help="Write JSON lines to files in this directory.",
            rule="64 MiB a file, the newest 8 are kept. One that cannot be used gives way to stderr, with a note.",
        ),
        Flag(
            ["--log-file"],
            panel=RUNNING,
            type=click.Path(path_type=Path),
            metavar="PATH",
            default_text="none",
            help="Append all of stderr, the engine's too, to this file.",
            rule="A file that cannot be opened ends the start with 1.",
        ),
        Flag(
            ["--drain-timeout"],
            panel=RUNNING,
            type=float,
            default=60.0,
            metavar="S",
            default_text="60",
            help="Seconds that running requests get at shutdown.",
            rule="At least 0.",
        ),
        Flag(
            ["--worker-timeout"],
            panel=RUNNING,
            type=float,
            default=10.0,
            metavar="S",
            default_text="10",
            help="Seconds without a sign of life after which the engine's process is replaced.",
            rule="At least 0.1.",
        ),
        Flag(
            ["--tui/--no-tui", "wants_monitor"],
            panel=RUNNING,
            default=None,
            default_text="on a terminal",
            help="The monitor: lanes, rates, queues and the log on this terminal.",
            rule="`--tui` needs a terminal, and the extra `superfluid-llm[tui]`.",
        ),
    ]


def _retired_flags() -> list[click.Parameter]:
    retired: list[click.Parameter] = [
        click.Option([CONTINUOUS_BATCHING, "continuous_batching"], hidden=True, callback=_note_continuous_batching)
    ]
    for name, has_value in RETIRED_FLAGS.items():
        # The same word both ways: click would invent a value for a flag and demand a name for its destination.
        kind: dict[str, Any] = {} if has_value else {"is_flag": True, "default": None}
        retired.append(click.Option([name], hidden=True, expose_value=False, callback=_note_retired, **kind))
    return retired


def _note_retired(_: click.Context, parameter: click.Parameter, value: object) -> None:
    if value:
        say_note(f"{parameter.opts[0]} is retired and has no effect; leave it out")


def _note_continuous_batching(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    if value is not None:
        say_note(f"{CONTINUOUS_BATCHING} is retired: batching is always on, and --max-batch sets the lanes")
    return value
