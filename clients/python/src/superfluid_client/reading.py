"""The door through which the daemon's JSON enters."""

from collections.abc import Iterator
from contextlib import contextmanager

from superfluid_client.errors import UnexpectedReply


@contextmanager
def reading(answer: str) -> Iterator[None]:
    """Turns what a misshapen answer trips into UnexpectedReply."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise UnexpectedReply(f"an answer {answer!r} that this client cannot read: {error!r}") from error
