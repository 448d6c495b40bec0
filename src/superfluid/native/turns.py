"""Beginning a generation for a client that may leave at any moment. Runs in the daemon."""

import asyncio

from superfluid.sessions.session_api import SessionApi, Turn


async def begin_turn(
    api: SessionApi, session: int, max_tokens: int, *, wants_provisional: bool = False, transport: str = ""
) -> Turn:
    """``api.generate``. Being cancelled while it is accepted cancels the generation as soon as there is one."""
    accepting = asyncio.ensure_future(
        api.generate(session, max_tokens, wants_provisional=wants_provisional, transport=transport)
    )
    try:
        return await asyncio.shield(accepting)
    except asyncio.CancelledError:
        accepting.add_done_callback(_cancel_turn)
        raise


def _cancel_turn(accepting: "asyncio.Future[Turn]") -> None:
    if not accepting.cancelled() and accepting.exception() is None:
        accepting.result().cancel()
