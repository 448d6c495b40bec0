"""The use case every front end calls: turn a request into a job, run it, hand out its reply. Runs in the daemon.

Rendering and tokenizing happen in a thread; everything else on the event loop. One ``ModelService`` per loaded model.
"""

import array
import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Protocol, TypeVar, assert_never

from superfluid.chat.interface import ChatCodec, Rendered, Tokenizer
from superfluid.config import GenerationConfig
from superfluid.domain.events import GenParams
from superfluid.domain.job import Job, ParkKind, PrefixPin
from superfluid.domain.model import ModelFacts
from superfluid.domain.request import (
    ChatPrompt,
    GenerationRequest,
    InfillPrompt,
    PlainPrompt,
    SamplingOverrides,
    SamplingParams,
    TextPrompt,
    TokenPrompt,
)
from superfluid.errors import (
    ContextLengthExceededError,
    InvalidRequestError,
    InvalidValueError,
    ModelLoadingError,
)
from superfluid.sessions.backend import GenerationBackend
from superfluid.sessions.chats import ChatStore, PreparedPrompt
from superfluid.sessions.counter import ReplyCounter
from superfluid.sessions.infill import InfillRequest, InfillService
from superfluid.sessions.interface import Reply
from superfluid.sessions.opening import OPENING_TOKENS
from superfluid.sessions.pinning import prefix_pins
from superfluid.sessions.reply import RunningReply
from superfluid.sessions.sampling import merge_overrides, resolve_sampling

_logger = logging.getLogger("superfluid_daemon")
_T = TypeVar("_T")
_SEED_BITS = 63
# How much of the prompt's end can tell whether its assistant header has opened a channel.
_OPENING_TOKENS = 8
# What a completion before a suffix gets that does not say: an editor wants a few lines, and soon.
_INFILL_TOKENS = 128


class TextSide(Protocol):
    """The vocabulary and the codec of one model, opened together once its worker has loaded the file."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def codec(self) -> ChatCodec: ...


class ModelService:
    """One served model: ``sessions.interface.ServedModel``."""

    def __init__(
        self,
        model_id: str,
        *,
        created_unix: int,
        backend: GenerationBackend,
        generation: GenerationConfig,
        counter: ReplyCounter,
        executor: Executor,
        infill: InfillService,
    ) -> None:
        self.model_id = model_id
        self.created_unix = created_unix
        self._backend = backend
        self._generation = generation
        self._counter = counter
        self._executor = executor
        self._infill = infill
        self._text: TextSide | None = None
        self._chats: ChatStore | None = None
        self._has_told_of_tools = False

    def attach_text(self, text: TextSide, chats: ChatStore | None = None) -> None:
        """Makes the model ready: called once, when the worker has loaded the file and the vocabulary is open.

        With ``chats`` every request is stored as a session.
        """
        self._text, self._chats = text, chats

    @property
    def is_ready(self) -> bool:
        return self._text is not None and self._backend.is_ready

    @property
    def facts(self) -> ModelFacts:
        return self._backend.facts

    @property
    def sampling_defaults(self) -> SamplingOverrides:
        return merge_overrides(self._generation.sampling, self.facts.sampling_defaults)

    @property
    def default_max_tokens(self) -> int | None:
        return self._generation.max_tokens

    @property
    def template_text(self) -> str | None:
        return None if self._text is None else self._text.codec.template_text

    @property
    def infill_id(self) -> str:
        return self._infill.model_id or self.model_id

    @property
    def capabilities(self) -> Mapping[str, bool | str]:
        has_template = self._text is not None and self._text.codec.has_chat_template
        chat: bool | str = True if has_template else "the model has no chat template"
        has_tools = self._text is not None and self._text.codec.shows_tools
        tools: bool | str = "the chat template has no place for tools" if has_template and not has_tools else chat
        return {
            "completion": True,
            "chat": chat,
            "tools": tools,
            "reasoning": self._reasoning_capability(),
            "infill": self._infill.capability,
            "vision": True if self.facts.media is not None else self.facts.no_images_reason,
            "embeddings": "this server generates text only",
            "audio": "this server generates text only",
        }

    def _reasoning_capability(self) -> bool | str:
        has_markers = self._text is not None and self._text.codec.knows_reasoning
        return True if has_markers else "the vocabulary has no markers around reasoning"

    async def tokenize(self, text: str) -> list[int]:
        tokenizer = self._loaded_text().tokenizer
        return await self._in_thread(lambda: tokenizer.encode_text(text))

    async def count_tokens(self, prompt: ChatPrompt) -> int:
        text = self._loaded_text()
        return len((await self._in_thread(lambda: text.codec.render(prompt))).tokens)

    async def start(self, request: GenerationRequest) -> Reply:
        """See ``sessions.interface.ServedModel``. A call that is cancelled or refused generates nothing."""
        if isinstance(request.prompt, InfillPrompt):
            return await self._start_infill(request, request.prompt)
        return await self._start(request, request.prompt)

    def _tell_of_tools(self) -> None:
        """Once: clients that declare tools do so with every request."""
        if not self._has_told_of_tools:
            self._has_told_of_tools = True
            _logger.warning("a request declares tools, which the chat template does not show the model")

    async def _start_infill(self, request: GenerationRequest, prompt: InfillPrompt) -> Reply:
        """Leaves no session behind."""
        return await self._infill.start(
            InfillRequest(
                prompt=prompt,
                max_tokens=request.max_tokens or self._generation.max_tokens or _INFILL_TOKENS,
                sampling=self._sampling(request, self._infill.facts),
                stop=request.stop,
                ignore_eos=request.ignore_eos,
                adapter=request.adapter,
            )
        )

    async def _start(self, request: GenerationRequest, prompt: PlainPrompt) -> RunningReply:
        text = self._loaded_text()
        if isinstance(prompt, ChatPrompt) and prompt.tools and not text.codec.shows_tools:
            self._tell_of_tools()
        facts = self._backend.facts
        reply_id = self._counter.open()
        try:
            rendered = await self._in_thread(lambda: _render(text, prompt))
            _check_length(rendered.tokens, facts)
            sampling = self._sampling(request, facts)
            prepared = await self._prepare(prompt, rendered, sampling)
            tokens = array.array("i", rendered.tokens) if prepared is None else prepared.tokens
            _check_length(tokens, facts)
            session = 0 if prepared is None else prepared.state.session
            input_tokens = 0
            if isinstance(prompt, ChatPrompt):
                input_tokens = rendered.message_ends[-1] if prepared is None else len(tokens) - len(prepared.opening)
            pins = prefix_pins(request, rendered, tokens)
            job = self._job(reply_id, tokens, request, sampling, facts, session, input_tokens, pins)
            self._counter.describe(reply_id, max_tokens=job.max_tokens)
            opening = tokens if prepared is None else prepared.opening
            prefill = prompt.prefill if isinstance(prompt, ChatPrompt) else ""
            # A token has a byte at least.
            looked_at = _OPENING_TOKENS + len(prefill.encode()) if prepared is None else OPENING_TOKENS
            reply = RunningReply(
                job,
                tokenizer=text.tokenizer,
                codec=text.codec,
                stop=request.stop,
                parse_tools=request.parse_tools,
                opening=opening[-looked_at:],
                prefill=prefill,
                on_cancel=self._backend.cancel,
                on_end=self._counter.close,
            )
        except BaseException:
            self._counter.close(reply_id)
            raise
        self._backend.submit(job, reply)
        reply.raise_if_failed()
        try:
            if prepared is not None and self._chats is not None:
                stored = self._chats.store(prepared)
                self._counter.describe(reply_id, session=stored.session.id)
                recorder = self._chats.recorder(stored, parse_tools=request.parse_tools, on_failed=reply.store_failed)
                reply.attach(stored, recorder)
        except BaseException:
            reply.cancel()
            raise
        return reply

    async def _prepare(
        self, prompt: PlainPrompt, rendered: Rendered, sampling: SamplingParams
    ) -> PreparedPrompt | None:
        """The request's session to be, if there is a store."""
        if self._chats is None:
            return None
        params = GenParams(
            sampling.temperature, sampling.top_p, sampling.min_p, sampling.top_k, sampling.seed % (1 << 64)
        )
        if isinstance(prompt, ChatPrompt):
            return await self._chats.prepare_chat(prompt, rendered, params)
        text = prompt.text if isinstance(prompt, TextPrompt) else None
        return self._chats.prepare_text(text, rendered.tokens, params)

    def _sampling(self, request: GenerationRequest, facts: ModelFacts) -> SamplingParams:
        return resolve_sampling(
            request.sampling,
            self._generation.sampling,
            facts.sampling_defaults,
            fresh_seed=secrets.randbits(_SEED_BITS) | 1,
        )

    def _job(
        self,
        job_id: int,
        tokens: "array.array[int]",
        request: GenerationRequest,
        sampling: SamplingParams,
        facts: ModelFacts,
        session: int,
        input_tokens: int,
        pins: list[PrefixPin],
    ) -> Job:
        room = facts.window_tokens - len(tokens)
        wanted = request.max_tokens if request.max_tokens is not None else self._generation.max_tokens
        return Job(
            job_id=job_id,
            tokens=tokens.tobytes(),
            prompt_tokens=len(tokens),
            max_tokens=room if wanted is None else min(wanted, room),
            sampling=sampling,
            ignore_eos=request.ignore_eos,
            logprobs=request.logprobs,
            qos=request.qos,
            is_batch_invariant=request.is_batch_invariant,
            session=session,
            park=ParkKind.REQUEST if session else ParkKind.NONE,
            input_tokens=input_tokens,
            prefix_pins=pins,
            adapter=request.adapter,
        )

    def _loaded_text(self) -> TextSide:
        if self._text is None:
            raise ModelLoadingError(f"the model {self.model_id} is still loading")
        return self._text

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


def _render(text: TextSide, prompt: PlainPrompt) -> Rendered:
    match prompt:
        case ChatPrompt():
            return text.codec.render(prompt)
        case TextPrompt():
            encode = text.tokenizer.encode_template if prompt.has_markers else text.tokenizer.encode_text
            return Rendered(encode(prompt.text, is_start=True), [])
        case TokenPrompt():
            limit = text.tokenizer.vocabulary_tokens
            if any(not 0 <= token < limit for token in prompt.tokens):
                raise InvalidValueError(f"token ids must be between 0 and {limit - 1}", param="prompt")
            return Rendered(list(prompt.tokens), [])
        case _:
            assert_never(prompt)


def _check_length(tokens: Sequence[int], facts: ModelFacts) -> None:
    if not tokens:
        raise InvalidRequestError("the prompt has no tokens", param="prompt")
    if len(tokens) >= facts.window_tokens:
        raise ContextLengthExceededError(
            f"the prompt has {len(tokens)} tokens, and this server's context window is {facts.window_tokens} tokens "
            "including the reply",
            param="messages",
        )
