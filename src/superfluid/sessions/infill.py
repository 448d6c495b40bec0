"""The use case of filling in the middle: no session, no record, a cache and a deadline. Runs on the event loop.

One ``InfillService`` per model, for all front ends.
"""

import array
import asyncio
from collections import OrderedDict
from concurrent.futures import Executor
from typing import Final

import msgspec
from msgspec import Struct

from superfluid.chat.infill import InfillRoom, infill_prompt
from superfluid.chat.interface import InfillMarkers
from superfluid.domain.job import Job
from superfluid.domain.model import ModelFacts
from superfluid.domain.reply import Finish, ReplyFinished, TextDelta
from superfluid.domain.request import InfillPrompt, QosClass, SamplingParams
from superfluid.domain.statistics import InfillCounters
from superfluid.errors import EngineFaultError, FimUnsupportedError, ModelLoadingError, ShuttingDownError
from superfluid.sessions.backend import GenerationBackend
from superfluid.sessions.counter import ReplyCounter
from superfluid.sessions.infill_reply import FinishedInfill, InfillReply
from superfluid.sessions.text import SessionText

CACHE_ENTRIES: Final = 256
_NO_MARKERS: Final = "this model cannot fill in the middle: its vocabulary has no tokens for it"
GREEDY: Final = SamplingParams(temperature=0.0)

CacheKey = tuple[bytes, bool, int, int, bytes, tuple[str, ...], bool, int]


class InfillRequest(Struct, frozen=True, kw_only=True):
    """What to fill in, and how. ``max_tokens`` may be more than the window has."""

    prompt: InfillPrompt
    max_tokens: int
    sampling: SamplingParams = GREEDY
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    adapter: int = 0


class Completion(Struct, frozen=True):
    """What was filled in. ``tokens`` are those of ``text``, without the one that ended it."""

    text: str
    tokens: tuple[int, ...]
    is_cached: bool
    is_expired: bool


class InfillCache:
    """Finished completions of greedy requests, the least recently used of which goes first."""

    def __init__(self, entries: int = CACHE_ENTRIES) -> None:
        self._limit = entries
        self._entries: OrderedDict[CacheKey, FinishedInfill] = OrderedDict()

    def get(self, key: CacheKey) -> FinishedInfill | None:
        found = self._entries.get(key)
        if found is not None:
            self._entries.move_to_end(key)
        return found

    def put(self, key: CacheKey, finished: FinishedInfill) -> None:
        self._entries[key] = finished
        self._entries.move_to_end(key)
        while len(self._entries) > self._limit:
            self._entries.popitem(last=False)


class InfillService:
    """``deadline_seconds`` bounds each completion from its arrival to its end, the wait for a lane included.

    ``model_id`` names a model of its own behind ``backend``, which no request asks for; ``None`` is the one asked for.
    """

    def __init__(
        self,
        backend: GenerationBackend,
        *,
        counter: ReplyCounter,
        executor: Executor,
        counters: InfillCounters,
        deadline_seconds: float | None = None,
        model_id: str | None = None,
    ) -> None:
        self.model_id = model_id
        self._backend = backend
        self._counter = counter
        self._executor = executor
        self._counters = counters
        self._deadline_seconds = deadline_seconds
        self._cache = InfillCache()
        self._text: SessionText | None = None

    @property
    def facts(self) -> ModelFacts:
        """Of the model that fills in. Raises ModelLoadingError until it is loaded."""
        return self._backend.facts

    @property
    def capability(self) -> bool | str:
        """Whether it can be done: true, or why not."""
        if self._text is None:
            return "the model is still loading"
        return True if self._text.tokenizer.infill_markers is not None else _NO_MARKERS

    def attach_text(self, text: SessionText) -> None:
        """The model is loaded."""
        self._text = text

    async def complete(self, prompt: InfillPrompt, max_tokens: int) -> Completion:
        """A whole greedy completion. Being cancelled ends it. Raises what ``start`` does, and what ended it."""
        reply = await self.start(InfillRequest(prompt=prompt, max_tokens=max_tokens))
        text, finished = "", None
        try:
            async for events in reply:
                for event in events:
                    if isinstance(event, TextDelta):
                        text += event.text
                    elif isinstance(event, ReplyFinished):
                        finished = event
        finally:
            reply.cancel()
        if finished is None or finished.finish is Finish.ERROR:
            raise EngineFaultError("the completion broke off without an end")
        if finished.finish is Finish.CANCELLED:
            raise ShuttingDownError("the completion was cancelled")
        if finished.is_expired:
            return Completion("", (), is_cached=False, is_expired=True)
        return Completion(text, reply.shown_tokens, finished.is_cached, is_expired=False)

    async def start(self, request: InfillRequest) -> InfillReply:
        """Accepts a completion. Raises FimUnsupportedError if the model has no tokens for it, ModelLoadingError,
        QueueFullError, ShuttingDownError."""
        text = self._loaded_text()
        if self.model_id is not None:
            # Adapters are made for the model that was asked for.
            request = msgspec.structs.replace(request, adapter=0)
        markers = _markers(text)
        window = self._backend.facts.window_tokens
        deadline = None
        if self._deadline_seconds is not None:
            deadline = asyncio.get_running_loop().time() + self._deadline_seconds
        reply_id = self._counter.open()
        try:
            tokens = await self._prompt_tokens(request, text, markers, window, deadline)
            key = _cache_key(request, tokens or [], text.fingerprint)
            reply = self._reply(reply_id, request, text, len(tokens or ()), key)
            self._counter.describe(reply_id, max_tokens=request.max_tokens)
        except BaseException:
            self._counter.close(reply_id)
            raise
        if tokens is None:
            reply.expire()
        elif key is not None and (known := self._cache.get(key)) is not None:
            reply.repeat(known)
        else:
            if deadline is not None:
                reply.expire_at(deadline)
            self._backend.submit(_job(reply_id, tokens, request, window), reply)
            reply.raise_if_failed()
        return reply

    def _reply(
        self, reply_id: int, request: InfillRequest, text: SessionText, prompt_tokens: int, key: CacheKey | None
    ) -> InfillReply:
        def end(reply_id: int, completed: FinishedInfill | None) -> None:
            self._counter.close(reply_id)
            if key is not None and completed is not None:
                self._cache.put(key, completed)

        return InfillReply(
            reply_id,
            prompt_tokens,
            tokenizer=text.tokenizer,
            codec=text.codec,
            stop=request.stop,
            counters=self._counters,
            on_cancel=self._backend.cancel,
            on_end=end,
        )

    async def _prompt_tokens(
        self, request: InfillRequest, text: SessionText, markers: InfillMarkers, window: int, deadline: float | None
    ) -> list[int] | None:
        """``None`` if the deadline passed meanwhile."""
        prompt = request.prompt
        room = InfillRoom(window, request.max_tokens).prompt_tokens

        def encode() -> list[int]:
            return infill_prompt(
                text.tokenizer,
                markers,
                prompt.prefix,
                prompt.suffix,
                is_suffix_first=prompt.is_suffix_first,
                room=room,
            )

        try:
            async with asyncio.timeout_at(deadline):
                return await asyncio.get_running_loop().run_in_executor(self._executor, encode)
        except TimeoutError:
            return None

    def _loaded_text(self) -> SessionText:
        if self._text is None:
            raise ModelLoadingError("the model is still loading")
        return self._text


def _markers(text: SessionText) -> InfillMarkers:
    markers = text.tokenizer.infill_markers
    if markers is None:
        raise FimUnsupportedError(_NO_MARKERS, param="suffix")
    return markers


def _cache_key(request: InfillRequest, tokens: list[int], fingerprint: int) -> CacheKey | None:
    """Everything that a greedy completion depends on; ``None`` for one that is drawn."""
    if request.sampling.temperature > 0:
        return None
    return (
        array.array("i", tokens).tobytes(),
        request.prompt.is_suffix_first,
        request.max_tokens,
        fingerprint,
        msgspec.msgpack.encode(msgspec.structs.replace(request.sampling, seed=0)),
        request.stop,
        request.ignore_eos,
        request.adapter,
    )


def _job(job_id: int, tokens: list[int], request: InfillRequest, window: int) -> Job:
    return Job(
        job_id=job_id,
        tokens=array.array("i", tokens).tobytes(),
        prompt_tokens=len(tokens),
        max_tokens=min(request.max_tokens, window - len(tokens)),
        sampling=request.sampling,
        ignore_eos=request.ignore_eos,
        qos=QosClass.COMPLETION,
        adapter=request.adapter,
    )
