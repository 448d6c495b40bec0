"""What can go wrong, and whose fault it is.

SuperfluidError
├── RequestRefused          the daemon answered Err: the request, or the session's state, must change
│   ├── SessionBusy         a generation is in flight on the session
│   ├── UnknownSession      no session has that id
│   │   └── SessionPurged   the one that had it was purged
│   ├── NothingInFlight     Cancel on an idle session
│   ├── VersionConflict     somebody else changed the session's metadata, or purged it, in between
│   ├── InfillUnsupported   the model cannot write between two texts
│   ├── PermissionPending   a permission request must be answered before the session may generate
│   ├── ModelLoading        the daemon was started a moment ago; sessions wait for it by themselves
│   └── ServerStopping      the daemon is about to end, and takes no more requests
├── GenerationFailed        a reply broke off with an error; what was committed is in the log
├── Unauthorized (401)      the token is wrong, or there is none to read
├── Forbidden (403)         the request looks like another site's
├── Throttled (429)         too many completions; try again after ``retry_after_seconds``
├── ConnectionLost          no answer: whether the request took effect is not known
│   └── ServerUnreachable   nothing was sent, because nobody listens there
└── UnexpectedReply         an answer that the session API does not give: is this its web address?
"""

import re


class SuperfluidError(Exception):
    """Base of everything this package raises on its own; wrong arguments are ValueError and TypeError."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class RequestRefused(SuperfluidError):
    """The daemon took the request and said no, in ``message``."""


class SessionBusy(RequestRefused):
    """Wait for the generation's end, or cancel it."""


class UnknownSession(RequestRefused):
    """There never was one with that id, or it is gone."""


class SessionPurged(UnknownSession):
    """It was purged. Its id is never used again."""


class NothingInFlight(RequestRefused):
    """There is no generation to cancel."""


class VersionConflict(RequestRefused):
    """The expected version or generation is not the session's own. Look at it again, then decide."""


class InfillUnsupported(RequestRefused):
    """The model has no tokens for filling in the middle."""


class PermissionPending(RequestRefused):
    """Answer it with ``Session.respond_permission``."""


class ModelLoading(RequestRefused):
    """What needs the model has to wait until it is loaded."""


class ServerStopping(RequestRefused):
    """The request had no effect. Another daemon may come up soon."""


class GenerationFailed(SuperfluidError):
    """The reply broke off. ``Session.last_reply`` holds what was committed; the next generation goes on from there."""


class Unauthorized(SuperfluidError):
    """The token is wrong or missing. It is made anew at every start of the daemon."""


class Forbidden(SuperfluidError):
    """The daemon does not take requests of this origin."""


class Throttled(SuperfluidError):
    """Completions are metered."""

    def __init__(self, retry_after_seconds: float, message: str | None = None) -> None:
        super().__init__(message or f"too many completions: try again in {retry_after_seconds:g} s")
        self.retry_after_seconds = retry_after_seconds


class ConnectionLost(SuperfluidError):
    """The connection broke or stayed silent for too long."""


class ServerUnreachable(ConnectionLost):
    """No connection came about, so the request had no effect."""


class UnexpectedReply(SuperfluidError):
    """The answer is none that the session API gives."""


# The daemon's refusals carry text only; these parts of it are fixed.
_REFUSALS: tuple[tuple[str, type[RequestRefused]], ...] = (
    (r" is generating;", SessionBusy),
    (r"unknown session", UnknownSession),
    (r"^session \d+ was purged", SessionPurged),
    (r"no generation in flight", NothingInFlight),
    (r"^session \d+ has (metadata version|generation) \d+, not", VersionConflict),
    (r"^session \d+ waits for a permission", PermissionPending),
    (r"cannot fill in the middle", InfillUnsupported),
    (r"is still loading", ModelLoading),
    (r"server is shutting down", ServerStopping),
)


def refusal(message: str) -> RequestRefused:
    """The exception for a refusal's text."""
    kind = next((kind for pattern, kind in _REFUSALS if re.search(pattern, message)), RequestRefused)
    return kind(message)
