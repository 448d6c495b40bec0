"""What a rebase makes of a log: the records that follow the inherited part, in the child's numbering. Pure."""

from collections.abc import Callable, Sequence

from msgspec import structs

from superfluid.domain.events import (
    Appended,
    Block,
    BlockKind,
    Body,
    Event,
    Generated,
    GenerationPrompt,
    GenParams,
    Message,
    Rebased,
    RebaseEdit,
    Replace,
    SpanBody,
    ToolParseFailure,
    ToolResult,
    ToolUse,
    TurnRole,
)
from superfluid.domain.media import parse_image_payload
from superfluid.domain.state import SessionState

RenderMessage = Callable[[SessionState, int, str], tuple[int, ...]]

_COPIED = (Appended, Message, GenerationPrompt, Generated, ToolUse, ToolResult, ToolParseFailure, Block)


def rebased_bodies(
    inherited: SessionState,
    rest: Sequence[Event],
    edits: Sequence[RebaseEdit],
    params: GenParams,
    render: RenderMessage,
) -> list[Body]:
    """The child's own records: ``Rebased``, then what the edits leave of ``rest``, spans copied as they are.

    ``inherited`` is the child's state before them and stays unchanged; ``rest`` are the parent's events from the first
    edit on. ``render`` gives a replacing message's tokens where the state passed to it stands.
    """
    parent = inherited.parent
    assert parent is not None
    scratch = inherited.snapshot()
    bodies: list[Body] = []
    new_call_ids: dict[int, int] = {}

    def add(body: Body) -> None:
        scratch.apply(Event(scratch.events, scratch.epoch, 0, body))
        bodies.append(body)

    add(Rebased(parent, inherited.fork_at, params, tuple(edits)))
    pending = list(edits)
    # Where the parent's input stood at each event: what is copied may come to stand elsewhere.
    position = len(inherited.tokens)
    for event in rest:
        stood_at, position = position, position + span_length(event.body)
        while pending and event.event_id >= pending[0].end:
            pending.pop(0)
        edit = pending[0] if pending else None
        if edit is not None and event.event_id >= edit.start:
            if isinstance(edit, Replace) and event.event_id == edit.start:
                add(Message(edit.role, edit.text, render(scratch, edit.role, edit.text)))
            continue
        if isinstance(event.body, ToolUse):
            new_call_ids[event.event_id] = scratch.events
        if isinstance(event.body, _COPIED):
            add(_copied(event.body, new_call_ids, shift=len(scratch.tokens) - stood_at))
    return bodies


def span_length(body: Body) -> int:
    """Tokens that the record put on the input."""
    return len(body.span) if isinstance(body, SpanBody) else 0


def _copied(body: Body, new_call_ids: dict[int, int], *, shift: int) -> Body:
    if isinstance(body, Block):
        return _shifted(body, shift)
    if not isinstance(body, ToolResult):
        return body
    call_id = new_call_ids.get(body.call_id)
    if call_id is None:
        # Its call is not in the copied part: what is left of it is what the model read.
        return Message(TurnRole.TOOL, body.content, body.span)
    return ToolResult(call_id, body.content, body.span)


def _shifted(block: Block, shift: int) -> Block:
    """An image's block says where its image is in the input."""
    payload = parse_image_payload(block.payload) if block.kind == BlockKind.IMAGE and block.span else None
    if payload is None or not shift:
        return block
    moved = structs.replace(payload, offset=payload.offset + shift)
    return structs.replace(block, payload=moved.encode())
