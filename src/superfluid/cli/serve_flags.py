"""All flags of ``superfluid serve``, panel by panel, as the help page and the settings page show them."""

import click

from superfluid.cli.infill_flags import infill_flags
from superfluid.cli.lane_flags import lane_flags
from superfluid.cli.listening_flags import listening_flags
from superfluid.cli.model_flags import model_flags
from superfluid.cli.otlp_flags import otlp_flags
from superfluid.cli.retired_flags import retired_flags
from superfluid.cli.running_flags import running_flags
from superfluid.cli.sampling_flags import sampling_flags
from superfluid.cli.scheduling_flags import scheduling_flags
from superfluid.cli.session_flags import session_flags
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


def serve_parameters() -> list[click.Parameter]:
    """All of them, built anew, in the order of the help page."""
    return [
        *model_flags(MODEL),
        *listening_flags(LISTENING),
        *session_flags(SESSIONS),
        *lane_flags(LANES),
        *scheduling_flags(SCHEDULING),
        *speculation_flags(SPECULATION),
        *sampling_flags(SAMPLING),
        *infill_flags(INFILL),
        *running_flags(RUNNING),
        *otlp_flags(),
        *retired_flags(),
    ]
