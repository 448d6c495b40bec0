"""A request to generate, in the daemon's own words. Every front end translates its dialect into these."""

import enum
from typing import Any, Literal

from msgspec import Struct, field

Role = Literal["system", "user", "assistant", "tool"]


class QosClass(enum.IntEnum):
    """Scheduling classes, best first. The numbers are those of the session API."""

    INTERACTIVE = 0
    COMPLETION = 1
    AGENT = 2
    BACKGROUND = 3


QOS_LABELS = {
    QosClass.INTERACTIVE: "interactive_chat",
    QosClass.COMPLETION: "inline_completion",
    QosClass.AGENT: "foreground_agent",
    QosClass.BACKGROUND: "background_agent",
}
"""What operators see the classes called, in metrics and on the status page."""


class SamplingParams(Struct, frozen=True, kw_only=True, array_like=True):
    """How the next token is drawn, fully resolved: nothing here falls back on a model's defaults.

    ``temperature`` 0 is greedy. ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 cut nothing. Penalties look at the last
    64 tokens of the stream, prompt included. The draw depends on (``seed``, position in the stream) only.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.0
    top_k: int = 0
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    logit_bias: dict[int, float] = field(default_factory=dict)


class SamplingOverrides(Struct, frozen=True, kw_only=True):
    """What one place (a request, the flags, the model file) says of sampling; ``None`` leaves it to the next place."""

    temperature: float | None = None
    top_p: float | None = None
    min_p: float | None = None
    top_k: int | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    logit_bias: dict[int, float] = field(default_factory=dict)


class ToolCall(Struct, frozen=True, kw_only=True):
    """A call in an assistant message's history. ``arguments`` is JSON text."""

    id: str
    name: str
    arguments: str


class Message(Struct, frozen=True, kw_only=True):
    """One turn of a conversation. Only ``assistant`` has calls and reasoning; only ``tool`` has ``tool_call_id``."""

    role: Role
    content: str = ""
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None


class ChatPrompt(Struct, frozen=True, kw_only=True):
    """A conversation to be rendered through the model's template, ending with an assistant header.

    ``tools`` are OpenAI function declarations, as JSON objects. ``template_kwargs`` reach the template as they are.
    ``prefill`` is what the reply begins with already: the model goes on behind it.
    """

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    prefill: str = ""


class TextPrompt(Struct, frozen=True, kw_only=True):
    """Text that goes to the model with no chat frame. ``has_markers`` if what looks like one in it is meant to be one:
    its writer has framed it by himself."""

    text: str
    has_markers: bool = False


class TokenPrompt(Struct, frozen=True, kw_only=True):
    """Token ids that go to the model as they are."""

    tokens: tuple[int, ...]


class InfillPrompt(Struct, frozen=True, kw_only=True):
    """Two texts between which something is missing. ``is_suffix_first`` is the order in which the model reads them."""

    prefix: str
    suffix: str
    is_suffix_first: bool = False


PlainPrompt = ChatPrompt | TextPrompt | TokenPrompt
Prompt = PlainPrompt | InfillPrompt


class MessagePin(Struct, frozen=True):
    """A chat prompt is to stay cached through the end of its message number ``message``, for ``ttl_ms``."""

    message: int
    ttl_ms: int


class GenerationRequest(Struct, frozen=True, kw_only=True):
    """One generation. ``max_tokens`` ``None`` means the server's default, else what the window leaves.

    ``logprobs`` ``None`` is off; 0 to 20 asks for the chosen token and that many alternatives.
    ``parse_tools`` false hands out a call that turns up as text (``tool_choice: none``). ``is_batch_invariant`` asks to
    run alone, so that no neighbour can change a bit of the result. ``adapter`` is the number of a LoRA adapter, 0 none.
    ``pins`` say up to where a chat prompt is to stay cached.
    """

    prompt: Prompt
    sampling: SamplingOverrides = SamplingOverrides()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    qos: QosClass = QosClass.AGENT
    parse_tools: bool = True
    is_batch_invariant: bool = False
    adapter: int = 0
    pins: tuple[MessagePin, ...] = ()
