"""One client of the session API, without sockets: requests in, one at a time in order; replies out. In the daemon.

A transport puts what it reads into ``inbox`` and writes what it takes from ``outbox``; ``run`` does the rest:

    bytes -> inbox -> decode -> use case -> encode -> outbox -> bytes
                                subscriptions ---------^

    input ended      what was asked is answered, then the connection ends
    garbage          what was asked before it is answered; then an Err (JSON), or the end (postcard)
    client gone      a generation or completion is cancelled at once, another request in hand is carried out, the rest
                     is dropped
    server stopping  the request in hand is answered (at once: its generation is cancelled), the rest is dropped
"""

import asyncio
import logging

from superfluid.domain.events import Event
from superfluid.errors import InternalFaultError
from superfluid.native import requests, responses
from superfluid.native.bounded_queue import BoundedQueue
from superfluid.native.dispatch import answer, failure
from superfluid.native.encodings import Encoding, decode_request, encode_response
from superfluid.native.frames import MAX_FRAME_BYTES
from superfluid.native.requests import Request
from superfluid.native.responses import Err, Response
from superfluid.native.schema import CodecError
from superfluid.native.subscriptions import Subscriptions
from superfluid.native.turns import begin_turn
from superfluid.sessions.session_api import SessionApi, Turn, TurnEnded

logger = logging.getLogger("superfluid_daemon")

MAX_WAITING_REQUESTS = 32
MAX_WAITING_REQUEST_BYTES = MAX_FRAME_BYTES
MAX_WAITING_REPLIES = 256
MAX_WAITING_REPLY_BYTES = 16 * 1024 * 1024
_CUT_COMPLETION = "the connection ended before the completion did"


class Connection:
    """``inbox`` holds whole requests and ``outbox`` whole replies, both encoded. Whoever puts into a full one waits.

    ``transport`` is what the log calls the way the client came.
    """

    def __init__(self, api: SessionApi, encoding: Encoding, transport: str = "") -> None:
        self.inbox = BoundedQueue(MAX_WAITING_REQUESTS, MAX_WAITING_REQUEST_BYTES)
        self.outbox = BoundedQueue(MAX_WAITING_REPLIES, MAX_WAITING_REPLY_BYTES)
        self._api = api
        self._encoding = encoding
        self._transport = transport
        self._subscriptions = Subscriptions(self._send)
        self._bucket = api.completion_bucket()
        self._turn: Turn | None = None
        self._completing: asyncio.Task[Response] | None = None
        self._is_ending = False
        self._is_cut = False

    async def run(self) -> None:
        """Returns when there is nothing more to answer; subscriptions have ended then, and so has ``outbox``.

        Being cancelled cancels the generation in hand, and drops what the client has left unread.
        """
        try:
            while (payload := await self.inbox.take()) is not None:
                if not await self._serve(payload) or self._is_ending:
                    break
            self.inbox.close()
            await self._subscriptions.detach_all()
        except asyncio.CancelledError:
            # Subscriptions wait for room in it, and their end is waited for.
            self.outbox.close()
            raise
        finally:
            self.inbox.close()
            await self._subscriptions.detach_all()
            self.outbox.end()

    def end_input(self) -> None:
        """No more requests come."""
        self.inbox.end()

    def abandon(self) -> None:
        """The client is gone: nothing can be sent any more."""
        self.outbox.close()
        self.finish(at_once=True)

    def finish(self, *, at_once: bool = False) -> None:
        """The request in hand is the last; with ``at_once`` it is cut short if it is a generation."""
        self._is_ending = True
        self.inbox.end()
        if at_once:
            self._is_cut = True
            if self._turn is not None:
                self._turn.cancel()
            if self._completing is not None:
                self._completing.cancel()

    # ---- requests

    async def _serve(self, payload: bytes) -> bool:
        """Answers one request. False if it was none, and the connection is to end without a word."""
        try:
            request = await decode_request(self._encoding, payload)
        except CodecError as error:
            if self._encoding.is_garbage_answered:
                await self._send(Err(f"invalid request frame: {error}"))
                return True
            logger.debug(f"a client of the session API sent something that is no request: {error}")
            return False
        await self._carry_out(request)
        return True

    async def _carry_out(self, request: Request) -> None:
        match request:
            case requests.Generate():
                await self._send(await self._guard_generate(request))
            case requests.Subscribe():
                await self._subscribe(request)
            case requests.Unsubscribe(sub):
                is_known = await self._subscriptions.detach(sub)
                await self._send(
                    responses.Unsubscribed() if is_known else Err(f"this connection has no subscription {sub}")
                )
            case requests.Complete():
                await self._send(await self._complete(request))
            case _:
                await self._send(await answer(self._api, request))

    async def _complete(self, request: requests.Complete) -> Response:
        """Unlike other requests it changes nothing, so it ends with the client that waits for it."""
        if self._is_cut:
            return Err(_CUT_COMPLETION)
        task = asyncio.ensure_future(answer(self._api, request, self._bucket))
        self._completing = task
        try:
            # No deadline: the operator sets one for completions, or wants none.
            await asyncio.wait((task,))
        finally:
            self._completing = None
            task.cancel()
        return Err(_CUT_COMPLETION) if task.cancelled() else task.result()

    async def _guard_generate(self, request: requests.Generate) -> Response:
        try:
            return await self._generate(request)
        except Exception as error:  # noqa: BLE001  (supervision point: a request's failure ends that request only)
            return failure(error)

    async def _generate(self, request: requests.Generate) -> Response:
        if self._is_cut:
            return Err("the connection ended before the generation began")
        turn = await begin_turn(self._api, request.session, request.max_tokens, transport=self._transport)
        self._turn = turn
        try:
            if self._is_cut:
                turn.cancel()
            return await self._relay(turn)
        except BaseException:
            turn.cancel()
            raise
        finally:
            self._turn = None

    async def _relay(self, turn: Turn) -> Response:
        """Sends each event of the turn as it comes. The reply that ends it."""
        events: list[Event] = []
        ended: TurnEnded | None = None
        # No deadline: a turn ends by itself, and a cancelled one soon.
        async for batch in turn:
            for item in batch:
                if isinstance(item, Event):
                    events.append(item)
                    await self._send(responses.Delta(item))
                elif isinstance(item, TurnEnded):
                    ended = item
        if ended is None:
            raise InternalFaultError("the generation stopped without an end")
        return responses.Generated(tuple(events), ended.tokens_generated, ended.finish, ended.warm_prefix)

    async def _subscribe(self, request: requests.Subscribe) -> None:
        if self._is_cut:
            return
        try:
            subscription = await self._api.subscribe(
                request.session, request.cursor, wants_provisional=request.provisional
            )
        except Exception as error:  # noqa: BLE001  (supervision point: a request's failure ends that request only)
            await self._send(failure(error))
            return
        await self._send(responses.Subscribed(subscription.sub_id))
        self._subscriptions.attach(subscription)

    # ---- replies

    async def _send(self, response: Response) -> None:
        """Waits while the client reads too slowly."""
        try:
            payload = await encode_response(self._encoding, response)
        except CodecError as error:
            payload = self._encoding.encode(failure(error))
        await self.outbox.put(payload)
