"""The subscriptions of one connection: each has a task that sends what it yields. Runs in the daemon."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import assert_never

from superfluid.domain.events import Event
from superfluid.native.dispatch import named_failure
from superfluid.native.responses import Response, SubEnded, SubEvent, SubProvisional
from superfluid.sessions.session_api import ProvisionalText, Subscription

SendResponse = Callable[[Response], Awaitable[None]]
# Ended subscriptions a client may still take leave of.
_REMEMBERED = 1024


class Subscriptions:
    """Owns subscriptions from ``attach`` to their end."""

    def __init__(self, send: SendResponse) -> None:
        self._send = send
        self._live: dict[int, tuple[Subscription, asyncio.Task[None]]] = {}
        self._ended: deque[int] = deque(maxlen=_REMEMBERED)

    def attach(self, subscription: Subscription) -> None:
        """Sends what it yields from now on, and last why it ended."""
        sub_id = subscription.sub_id
        task = asyncio.create_task(self._pump(subscription), name=f"subscription {sub_id}")
        self._live[sub_id] = subscription, task
        task.add_done_callback(lambda _: self._forget(sub_id))

    async def detach(self, sub_id: int) -> bool:
        """Ends it; its last frame is sent when this returns. False if the connection has none of that id."""
        live = self._live.pop(sub_id, None)
        if live is None:
            if sub_id not in self._ended:
                return False
            # It ended by itself, and the client is told so only once.
            self._ended.remove(sub_id)
            return True
        subscription, task = live
        subscription.close()
        # No deadline: the task waits for nothing but the client, who is the one that waits here.
        await asyncio.wait((task,))
        return True

    async def detach_all(self) -> None:
        live = list(self._live.values())
        for subscription, _ in live:
            subscription.close()
        if live:
            await asyncio.wait([task for _, task in live])

    def _forget(self, sub_id: int) -> None:
        if self._live.pop(sub_id, None) is not None:
            self._ended.append(sub_id)

    async def _pump(self, subscription: Subscription) -> None:
        try:
            async for batch in subscription:
                for item in batch:
                    if subscription.end_reason == "unsubscribed":
                        break
                    await self._send(_frame(subscription.sub_id, item))
        except Exception as error:  # noqa: BLE001  (supervision point: other subscriptions go on)
            named_failure(error)
        finally:
            reason = subscription.end_reason or "publisher closed"
            if subscription.end_reason is None:
                subscription.close()
        await self._send(SubEnded(subscription.sub_id, reason))


def _frame(sub_id: int, item: Event | ProvisionalText) -> Response:
    match item:
        case Event():
            return SubEvent(sub_id, item)
        case ProvisionalText(channel, text):
            return SubProvisional(sub_id, channel, text)
    assert_never(item)
