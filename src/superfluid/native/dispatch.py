"""One request in, one reply out: which use case answers what, and how failures read. Runs in the daemon."""

import logging
from typing import assert_never

from superfluid.domain.request import InfillPrompt
from superfluid.errors import CompletionRateLimitedError, InternalFaultError, SuperfluidError
from superfluid.native import requests, responses
from superfluid.native.replies import inspection_of, ledger_of, summary_of, tool_calls_of, tree_of
from superfluid.native.requests import Request
from superfluid.native.responses import Err, Response
from superfluid.sessions.metering import CompletionBucket
from superfluid.sessions.session_api import SessionApi

logger = logging.getLogger("superfluid_daemon")

StreamingRequest = requests.Generate | requests.Subscribe | requests.Unsubscribe
"""What needs a connection that lasts: it is answered by more than one frame, or belongs to such a request."""


async def answer(api: SessionApi, request: Request, bucket: CompletionBucket | None = None) -> Response:
    """The reply, which is an ``Err`` if the request fails for whatever reason. Nothing is raised but a cancellation.

    ``bucket`` is what the client's completions are taken from; without one each has a bucket of its own.
    """
    try:
        return await _answer(api, request, bucket)
    except CompletionRateLimitedError as error:
        return responses.Throttled(error.retry_after_ms)
    except Exception as error:  # noqa: BLE001  (supervision point: a request's failure ends that request only)
        return failure(error)


def failure(error: Exception) -> Err:
    """How a failure reads. One that superfluid does not name goes to the log, and not to the client."""
    return Err(named_failure(error).message)


def named_failure(error: Exception) -> SuperfluidError:
    """``error``, or what stands for it after it was logged."""
    if isinstance(error, SuperfluidError):
        return error
    logger.error("a request of the session API failed", exc_info=error)
    return InternalFaultError("superfluid failed to answer; its log has the details")


async def _answer(api: SessionApi, request: Request, bucket: CompletionBucket | None) -> Response:
    match request:
        case requests.Append() | requests.AppendMessage() | requests.AppendSystem() | requests.AppendBlock():
            return await _append(api, request)
        case requests.PutMedia() | requests.AppendImage() | requests.GcMedia():
            return await _show(api, request)
        case requests.AppendToolResult() | requests.RequestToolCancel() | requests.AppendToolOutcome():
            return await _settle_call(api, request)
        case requests.RequestPermission(session, call_id, text):
            return responses.Committed(await api.request_permission(session, call_id, text))
        case requests.RespondPermission(session, request_id, granted):
            return responses.Committed(await api.respond_permission(session, request_id, granted=granted))
        case requests.SetMeta() | requests.SetQos() | requests.Pin():
            return await _set(api, request)
        case requests.Create() | requests.Fork() | requests.Trim() | requests.Rebase():
            return await _make_session(api, request)
        case requests.Purge(session, expected_generation, mode):
            return responses.Purged(tuple(await api.purge(session, expected_generation, mode)))
        case requests.List() | requests.Sessions() | requests.Tree():
            return await _list(api, request)
        case requests.Read() | requests.Inspect() | requests.OpenToolCalls() | requests.Ledger():
            return await _read(api, request)
        case requests.Warmth(session):
            warmth = await api.warmth(session)
            return responses.Warmth(warmth.lane, warmth.memory, warmth.disk)
        case requests.Cancel(session):
            await api.cancel(session)
            return responses.Cancelling()
        case requests.Metrics():
            return responses.Text(await api.metrics_text())
        case requests.SetLogLevel(directive):
            await api.set_log_level(directive)
            return responses.Ack()
        case requests.SetBackgroundRate(divisor):
            await api.set_background_rate(divisor)
            return responses.Ack()
        case requests.Complete():
            return await _complete(api, request, bucket or api.completion_bucket())
        case requests.Generate() | requests.Subscribe() | requests.Unsubscribe():
            return Err(f"{type(request).__name__} needs a connection that stays open: use /web/ws or the unix socket")
        case _:
            assert_never(request)


async def _complete(api: SessionApi, request: requests.Complete, bucket: CompletionBucket) -> Response:
    # Any other mode than 1 means the prefix first.
    prompt = InfillPrompt(
        prefix=request.prefix, suffix=request.suffix, is_suffix_first=request.mode == requests.FimMode.SPM
    )
    done = await api.complete(bucket, prompt, request.max_tokens)
    return responses.Completion(done.text, done.tokens, done.is_cached, done.is_expired)


async def _append(
    api: SessionApi,
    request: requests.Append | requests.AppendMessage | requests.AppendSystem | requests.AppendBlock,
) -> Response:
    match request:
        case requests.Append(session, text, span):
            return responses.Committed(await api.append(session, text, span))
        case requests.AppendMessage(session, role, text):
            return responses.Committed(await api.append_message(session, role, text))
        case requests.AppendSystem(session, text, tools):
            return responses.Committed(await api.append_system(session, text, tools))
        case requests.AppendBlock(session, role, kind, payload):
            return responses.Committed(await api.append_block(session, role, kind, payload))
    assert_never(request)


async def _show(api: SessionApi, request: requests.PutMedia | requests.AppendImage | requests.GcMedia) -> Response:
    match request:
        case requests.PutMedia(content):
            return responses.Media(await api.put_media(content))
        case requests.AppendImage(session, role, blob, pre_text, post_text):
            return responses.Committed(await api.append_image(session, role, blob, pre_text, post_text))
        case requests.GcMedia():
            return responses.Gc(*await api.gc_media())
    assert_never(request)


async def _settle_call(
    api: SessionApi, request: requests.AppendToolResult | requests.RequestToolCancel | requests.AppendToolOutcome
) -> Response:
    match request:
        case requests.AppendToolResult(session, call_id, content):
            return responses.Committed(await api.append_tool_result(session, call_id, content))
        case requests.RequestToolCancel(session, call_id):
            return responses.Committed(await api.request_tool_cancel(session, call_id))
        case requests.AppendToolOutcome(session, call_id, outcome, note):
            return responses.Committed(await api.append_tool_outcome(session, call_id, outcome, note))
    assert_never(request)


async def _set(api: SessionApi, request: requests.SetMeta | requests.SetQos | requests.Pin) -> Response:
    match request:
        case requests.SetMeta(session, expected_version, title, archived):
            return responses.Meta(await api.set_meta(session, expected_version, title, archived))
        case requests.SetQos(session, qos_class, batch_invariant):
            return responses.Committed(await api.set_qos(session, qos_class, batch_invariant=batch_invariant))
        case requests.Pin(session, ttl_ms):
            return responses.Pinned(await api.pin(session, ttl_ms))
    assert_never(request)


async def _make_session(
    api: SessionApi, request: requests.Create | requests.Fork | requests.Trim | requests.Rebase
) -> Response:
    match request:
        case requests.Create(parent, params):
            return responses.Created(await api.create(parent, params))
        case requests.Fork(session, at_event, params):
            return responses.Created(await api.fork(session, at_event, params))
        case requests.Trim(session, to_event):
            return responses.Created(await api.trim(session, to_event))
        case requests.Rebase(session, edits, params):
            return responses.Created(await api.rebase(session, edits, params))
    assert_never(request)


async def _list(api: SessionApi, request: requests.List | requests.Sessions | requests.Tree) -> Response:
    match request:
        case requests.List():
            return responses.Sessions(tuple(row.id for row in await api.session_rows(include_archived=True)))
        case requests.Sessions(include_archived):
            rows = await api.session_rows(include_archived=include_archived)
            return responses.SessionList(tuple(map(summary_of, rows)))
        case requests.Tree():
            return tree_of(await api.session_rows(include_archived=False))
    assert_never(request)


async def _read(
    api: SessionApi, request: requests.Read | requests.Inspect | requests.OpenToolCalls | requests.Ledger
) -> Response:
    match request:
        case requests.Read(session, cursor):
            return responses.Events(tuple(await api.read(session, cursor)))
        case requests.Inspect(session):
            return inspection_of(await api.inspect(session))
        case requests.OpenToolCalls(session):
            return responses.ToolCalls(tool_calls_of(await api.open_tool_calls(session)))
        case requests.Ledger(session):
            return responses.Ledger(ledger_of(await api.ledger(session)))
    assert_never(request)
