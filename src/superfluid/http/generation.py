"""The one handler of all dialects: read, translate, start, deliver, account. Runs in the daemon.

A hang-up cancels every reply of the request at once, streaming or not. A stream is answered with 200 only when its
generation has been accepted; what fails later ends the stream with an error frame.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from msgspec import Struct
from starlette.types import Receive, Scope, Send

from superfluid.clock import Clock
from superfluid.config import HttpQosConfig
from superfluid.domain.request import GenerationRequest, QosClass
from superfluid.errors import EngineFaultError, InternalFaultError, ShuttingDownError, SuperfluidError
from superfluid.http.bodies import ClientGoneError, parse_body, read_body
from superfluid.http.collect import CollectedReply, ReplyCollector, ReplyProgress
from superfluid.http.dialect import Dialect, Exchange, Opening, StreamWriter
from superfluid.http.qos import RequestedQos, requested_qos
from superfluid.http.responses import header_values, send_error, send_response
from superfluid.http.sse import ResponseStream, until_hangup
from superfluid.http.timing import DeliverySpan, GenerationMeter
from superfluid.sessions.interface import GenerationTiming, ModelDirectory, Reply, ServedModel
from superfluid.sessions.metering import CompletionMeter

logger = logging.getLogger("superfluid_daemon")

RecordGeneration = Callable[[GenerationTiming], None]


class GenerationContext(Struct, frozen=True):
    """What every generating route shares."""

    models: ModelDirectory
    record_generation: RecordGeneration
    clock: Clock
    max_body_bytes: int
    keepalive_seconds: float
    meter: CompletionMeter
    qos: HttpQosConfig = HttpQosConfig()


class GenerationEndpoint:
    """The ASGI endpoint of one generating route."""

    def __init__(self, dialect: Dialect, context: GenerationContext) -> None:
        self._dialect = dialect
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await read_body(scope, receive, self._context.max_body_bytes)
            exchange = await parse_body(body, self._dialect.parse)
            del body
            qos = self._admitted(scope, exchange)
            model = self._context.models.resolve(exchange.model)
            await until_hangup(receive, self._serve(exchange, qos, model, send))
        except ClientGoneError:
            return
        except SuperfluidError as error:
            await send_error(send, error, self._dialect.error_body(error))

    def _admitted(self, scope: Scope, exchange: Exchange) -> RequestedQos:
        """How the request is scheduled. What fills in the middle has a class of its own and is metered. Raises
        CallerError if it may not be served."""
        if not exchange.is_infill:
            return requested_qos(scope, self._context.qos)
        self._context.meter.take(_caller(scope))
        return RequestedQos(QosClass.COMPLETION, is_batch_invariant=False)

    async def _serve(self, exchange: Exchange, qos: RequestedQos, model: ServedModel, send: Send) -> None:
        if not exchange.requests:
            await self._confirm(exchange, model, send)
            return
        meter = GenerationMeter(self._context.clock.monotonic())
        requests = tuple(qos.of(request) for request in exchange.requests)
        if exchange.is_stream:
            await self._stream(exchange, requests[0], model, send, meter)
        else:
            await self._answer(exchange, requests, model, send, meter)

    async def _confirm(self, exchange: Exchange, model: ServedModel, send: Send) -> None:
        """Nothing is to be generated. Raises ModelLoadingError until the model is loaded."""
        _ = model.facts
        opening = Opening(0, model.model_id, int(self._context.clock.unix()), 0)
        answer = exchange.answer(opening, ())
        await send_response(send, 200, answer.body, headers=answer.headers)

    async def _answer(
        self,
        exchange: Exchange,
        requests: Sequence[GenerationRequest],
        model: ServedModel,
        send: Send,
        meter: GenerationMeter,
    ) -> None:
        replies: list[Reply] = []
        try:
            for request in requests:
                reply = await model.start(request)
                replies.append(reply)
            collected = await self._collect_all(replies, meter)
        finally:
            for reply in replies:
                reply.cancel()
        opening = self._opening(exchange, replies[0], model)
        answer = exchange.answer(opening, collected)
        self._record(_route(exchange), opening, meter)
        await send_response(send, 200, answer.body, headers=answer.headers)

    async def _collect_all(self, replies: list[Reply], meter: GenerationMeter) -> list[CollectedReply]:
        now = self._context.clock.monotonic()
        if len(replies) == 1:
            return [await self._collect(replies[0], *meter.add_reply(now))]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._collect(reply, *meter.add_reply(now))) for reply in replies]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _collect(self, reply: Reply, progress: ReplyProgress, span: DeliverySpan) -> CollectedReply:
        collector = ReplyCollector(progress)
        async for events in reply:
            now = self._context.clock.monotonic()
            progress.note(events, now)
            collector.feed(events)
            span.stamp(now, progress.tokens)
        return collector.finish()

    async def _stream(
        self,
        exchange: Exchange,
        request: GenerationRequest,
        model: ServedModel,
        send: Send,
        meter: GenerationMeter,
    ) -> None:
        reply = await model.start(request)
        try:
            opening = self._opening(exchange, reply, model)
            progress, span = meter.add_reply(self._context.clock.monotonic())
            writer = exchange.stream_writer(opening, progress)
            async with ResponseStream(send, exchange.framing, self._context.keepalive_seconds) as stream:
                await stream.begin(writer.begin())
                try:
                    last_frames, is_whole = await self._deliver(reply, stream, writer, progress, span)
                except asyncio.CancelledError:
                    reply.cancel()
                    await stream.abandon(writer.fail(ShuttingDownError("the server is shutting down")))
                    raise
                if is_whole:
                    self._record(_route(exchange, is_stream=True), opening, meter)
                await stream.finish(last_frames)
        finally:
            reply.cancel()

    async def _deliver(
        self, reply: Reply, stream: ResponseStream, writer: StreamWriter, progress: ReplyProgress, span: DeliverySpan
    ) -> tuple[bytes, bool]:
        """Streams the reply up to its last batch, whose frames it returns, and whether the reply is whole: they go out
        behind the access log's line."""
        now = self._context.clock.monotonic
        try:
            async for events in reply:
                progress.note(events, now())
                frames = writer.feed(events)
                if progress.finished is not None:
                    span.stamp(now(), progress.tokens)
                    return frames, True
                if frames:
                    await stream.write(frames)
                    span.stamp(now(), progress.tokens)
            return writer.fail(EngineFaultError("the reply broke off without an end")), False
        except SuperfluidError as error:
            return writer.fail(error), False
        except Exception:
            # Supervision point: a begun stream still ends with an error that its client can read.
            logger.exception("a stream failed")
            fault = InternalFaultError("superfluid failed to finish this answer; its log has the details")
            return writer.fail(fault), False

    def _record(self, route: str, opening: Opening, meter: GenerationMeter) -> None:
        self._context.record_generation(
            meter.timing(
                route=route,
                model=opening.served_by or opening.model_id,
                prompt_tokens=opening.prompt_tokens,
                now=self._context.clock.monotonic(),
            )
        )

    def _opening(self, exchange: Exchange, reply: Reply, model: ServedModel) -> Opening:
        served_by = model.infill_id if exchange.is_infill else None
        created = int(self._context.clock.unix())
        return Opening(reply.reply_id, model.model_id, created, reply.prompt_tokens, served_by, tuple(reply.pins))


def _route(exchange: Exchange, *, is_stream: bool = False) -> str:
    """As the access log names it."""
    if exchange.is_infill:
        return f"{exchange.route} (fim)"
    return f"{exchange.route} (stream)" if is_stream else exchange.route


def _caller(scope: Scope) -> bytes:
    """Who asks, as far as one can tell: the address and the key."""
    client = scope.get("client")
    keys = [*header_values(scope, b"authorization"), *header_values(scope, b"x-api-key")]
    return b"\0".join([(client[0] if client else "").encode(), *keys])
