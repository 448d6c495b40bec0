"""What a generation on a session begins with: its header, a parser at the right place, its job. Pure."""

import math
from collections.abc import Sequence

from superfluid.chat.interface import ChatCodec, ReplyParser, TurnCodec
from superfluid.domain.events import GenParams
from superfluid.domain.job import Job, ParkKind
from superfluid.domain.media import with_image_ids
from superfluid.domain.reply import Channel, Finish
from superfluid.domain.request import QosClass, SamplingParams
from superfluid.domain.state import SessionState, TurnKind

OPENING_TOKENS = 1024
"""How much of what comes before a reply is searched for a marker that has opened a channel."""


def turn_header(state: SessionState, turns: TurnCodec) -> tuple[int, ...]:
    """The assistant header that a new turn opens with; nothing where decoding goes on in place."""
    if state.last_turn in (TurnKind.MESSAGE, TurnKind.TOOL_RESULT):
        return tuple(turns.opener())
    if state.last_turn is TurnKind.GENERATED and state.last_turn_finish is Finish.END_OF_TURN:
        return (*turns.separator(), *turns.opener())
    return ()


def turn_parser(
    state: SessionState, header: Sequence[int], codec: ChatCodec, *, parse_tools: bool = True
) -> ReplyParser:
    """A parser that stands where the reply stands: behind ``header``, which is about to be appended, or else behind
    what the open reply holds so far, in the channel that was left open."""
    if header or not state.is_reply_open:
        return codec.reply_parser(parse_tools=parse_tools, opening=header)
    opening = state.tokens[max(state.header_start, state.reply_start - OPENING_TOKENS) : state.reply_start]
    parser = codec.reply_parser(parse_tools=parse_tools, opening=opening)
    if state.reply_start < len(state.tokens):
        parser.feed(state.tokens[state.reply_start :])
    return parser


def open_channel(state: SessionState, header: Sequence[int]) -> Channel:
    """The channel of a record that holds no token of the generation."""
    return state.last_channel if not header and state.drawn_tokens else Channel.TEXT


def turn_job(
    job_id: int,
    state: SessionState,
    header: Sequence[int],
    max_tokens: int,
    window_tokens: int,
    *,
    encoder_fingerprint: str = "",
) -> Job:
    """The job that draws up to ``max_tokens`` behind ``header``, which is about to be appended.

    ``encoder_fingerprint`` is that of what shows the model its images.
    What was drawn last in an open turn is reply, not prompt: so the engine may continue it bit for bit.
    """
    tokens = with_image_ids(state.tokens, state.images, encoder_fingerprint)
    tokens.extend(header)
    return Job(
        job_id=job_id,
        tokens=tokens.tobytes(),
        prompt_tokens=max(1, len(tokens) - (0 if header else state.drawn_tokens)),
        max_tokens=min(max_tokens, window_tokens - len(tokens)),
        sampling=_sampling(state.params),
        qos=QosClass(state.qos_class),
        is_batch_invariant=state.is_batch_invariant,
        session=state.session,
        images=state.images[:],
        park=ParkKind.SESSION,
        input_tokens=len(tokens) - len(header) if header else 0,
        pin_deadline_unix_ms=state.pin_deadline_unix_ms,
    )


def _sampling(params: GenParams) -> SamplingParams:
    """Clients may store any numbers, infinite ones and NaN too; the engine gets those that mean something."""
    return SamplingParams(
        temperature=max(0.0, _number(params.temperature, 0.0)),
        top_p=min(1.0, max(0.0, _number(params.top_p, 1.0))),
        min_p=min(1.0, max(0.0, _number(params.min_p, 0.0))),
        top_k=params.top_k,
        seed=params.seed,
    )


def _number(value: float, fallback: float) -> float:
    return fallback if math.isnan(value) else value
