"""A model's chat template as a codec: conversations to tokens, and replies back. Runs in the daemon, off its event
loop.

Client text is guarded before the template sees it (``guard``), the template runs in a sandbox with a deadline
(``sandbox``), and only the markers that the template itself wrote become special tokens (``rendering``).
"""

import datetime
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from superfluid.chat.bound import PromptBound
from superfluid.chat.channels import ChannelParser, find_channel_markers
from superfluid.chat.guard import LookAlikes, TextGuard, private_characters
from superfluid.chat.instrument import MarkedText, TurnMarks
from superfluid.chat.interface import ModelVocabulary, Rendered, TemplateSource
from superfluid.chat.messages import (
    MessageShape,
    ShapedMessages,
    probe_append_stability,
    probe_shape,
    shape_messages,
    with_content_parts,
)
from superfluid.chat.rendering import RenderingEncoder
from superfluid.chat.sandbox import TemplateEnvironment
from superfluid.chat.token_cache import TokenCacheStatistics
from superfluid.domain.reply import Channel
from superfluid.domain.request import ChatPrompt, Message
from superfluid.errors import TemplateRefusedError, UnsupportedInputError

_log = logging.getLogger(__name__)

RENDER_SECONDS: Final = 2.0
_PROBE_SECONDS: Final = 0.25


class TemplateProgram:
    """A compiled template and what probing it has shown."""

    def __init__(self, source: str, environment: TemplateEnvironment, constants: Mapping[str, Any]) -> None:
        """Raises TemplateRefusedError if ``source`` does not compile."""
        self._environment = environment
        self._template = environment.compile_template(source)
        self._constants = dict(constants)
        self.shape = MessageShape()
        self.shape = probe_shape(self._probe, source)
        self.is_append_stable = probe_append_stability(self._probe)
        self.header = self._probe_header()

    def render(self, variables: Mapping[str, Any], marks: TurnMarks, seconds: float | None = None) -> str:
        """See ``TemplateEnvironment.render``."""
        return self._environment.render(self._template, {**variables, **self._constants}, marks, seconds)

    def _probe_header(self) -> str:
        """The assistant header, if it is what the rendering of a conversation ends with."""
        messages = [{"role": "user", "content": "zq_user"}]
        without, with_header = self._probe(messages, None, False), self._probe(messages, None, True)
        if without is None or with_header is None or not with_header.startswith(without):
            return ""
        return with_header[len(without) :]

    def _probe(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        has_header: bool,
    ) -> str | None:
        if self.shape.has_content_parts:
            messages = [with_content_parts(message) for message in messages]
        variables = {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": has_header}
        try:
            return self.render(variables, TurnMarks({}, ""), _PROBE_SECONDS)
        except TemplateRefusedError:
            return None


class TemplateCodec:
    """``ChatCodec`` over a vocabulary and the templates of its model. Thread-safe."""

    def __init__(
        self,
        vocabulary: ModelVocabulary,
        *,
        loaded_at: datetime.datetime | None = None,
        render_seconds: float = RENDER_SECONDS,
        cpu_clock: Callable[[], float] = time.thread_time,
        bound: PromptBound | None = None,
    ) -> None:
        """Compiles and probes the templates: some milliseconds of CPU work, a few seconds if a template loops.

        A template that does not compile counts as none. ``loaded_at`` is the time that templates are told for good
        (default: now). ``render_seconds`` is processor time. ``bound`` is how much ``render`` takes at most.
        """
        self._vocabulary = vocabulary
        self._bound = bound
        self._source: TemplateSource = vocabulary.template_source
        self._look_alikes = LookAlikes(vocabulary.special_tokens)
        self._encoder = RenderingEncoder(vocabulary)
        self._channel_markers = find_channel_markers(vocabulary)
        self._environment = TemplateEnvironment(
            loaded_at=loaded_at or datetime.datetime.now().astimezone(),
            render_seconds=render_seconds,
            cpu_clock=cpu_clock,
        )
        default = self._compile(self._source.default, "default")
        tool_use = self._compile(self._source.tool_use, "tool_use")
        self._default = default or tool_use
        self._tool_use = tool_use or default
        self._source_characters = private_characters([self._source.default or "", self._source.tool_use or ""])
        if default is not None and not default.is_append_stable:
            _log.info("the chat template rewrites earlier turns: long conversations reuse less of what was computed")

    @property
    def has_chat_template(self) -> bool:
        return self._default is not None

    @property
    def template_text(self) -> str | None:
        return self._source.default or self._source.tool_use

    @property
    def is_append_stable(self) -> bool:
        return self._default is not None and self._default.is_append_stable

    @property
    def knows_reasoning(self) -> bool:
        return Channel.REASONING in self._channel_markers.opens.values()

    @property
    def shows_tools(self) -> bool:
        # Whether one shows them cannot be rendered without arguments that this one may refuse: its text says enough.
        return self._tool_use is not None and "tools" in (self._source.tool_use or self._source.default or "")

    @property
    def writes_tool_calls(self) -> bool:
        """Whether the template knows calls and their results."""
        return self._tool_use is not None and self._tool_use.shape.writes_calls

    @property
    def has_system_turn(self) -> bool:
        """Whether the template writes a system message as a turn of its own."""
        return self._default is not None and not self._default.shape.folds_system

    def statistics(self) -> TokenCacheStatistics:
        return self._encoder.statistics()

    def render(self, prompt: ChatPrompt, *, gap: str = "") -> Rendered:
        """With ``gap``, a character of the messages that the template does not know, ``GAP`` stands in its place."""
        program = self._tool_use if prompt.tools else self._default
        if program is None:
            raise UnsupportedInputError("this model has no chat template: send a text prompt", param="messages")
        if self._bound is not None:
            begun = [Message(role="assistant", content=prompt.prefill)] if prompt.prefill else []
            self._bound.check_messages([*prompt.messages, *begun])
        try:
            # Everything in the prompt that is a string, once: what is in use already cannot stand for something else.
            strings = msgspec.to_builtins(prompt)
            guard = TextGuard(self._look_alikes, self._source_characters | private_characters(strings))
            shaped = shape_messages(prompt.messages, program.shape, guard)
            marked = self._run(program, prompt, shaped, guard)
        except RecursionError:
            raise TemplateRefusedError("the conversation is nested too deeply", param="messages") from None
        roles = [message.role for message in prompt.messages]
        rendered = self._encoder.encode(marked, roles, program.header, guard, gap)
        return self._encoder.begin_reply(rendered, prompt.prefill) if prompt.prefill else rendered

    def reply_parser(self, *, parse_tools: bool, opening: Sequence[int] = ()) -> ChannelParser:
        return ChannelParser(self._vocabulary, self._channel_markers, parse_tools=parse_tools, opening=opening)

    def _compile(self, source: str | None, variant: str) -> TemplateProgram | None:
        if not source:
            return None
        constants = {"bos_token": self._source.bos_text, "eos_token": self._source.eos_text}
        try:
            return TemplateProgram(source, self._environment, constants)
        except TemplateRefusedError as error:
            _log.warning("the model's %s chat template is not used: %s", variant, error.message)
            return None

    def _run(
        self,
        program: TemplateProgram,
        prompt: ChatPrompt,
        shaped: ShapedMessages,
        guard: TextGuard,
    ) -> MarkedText:
        ids = {id(message): index for message, index in zip(shaped.dicts, shaped.indices, strict=True)}
        marks = TurnMarks(ids, guard.sign)
        variables = {
            **{name: guard.guard_json(value) for name, value in prompt.template_kwargs.items()},
            "messages": shaped.dicts,
            "tools": [guard.guard_json(tool) for tool in prompt.tools] or None,
            "documents": None,
            "add_generation_prompt": True,
        }
        return marks.read(program.render(variables, marks))
