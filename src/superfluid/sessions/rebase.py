"""What a rebase makes of a log: the records that follow the inherited part, in the child's numbering. Pure."""

from collections.abc import Callable, Sequence

from superfluid.domain.events import (
    Appended,
    Block,
    Body,
    Event,
    Generated,
    GenerationPrompt,
    GenParams,
    Message,
    Rebased,
    RebaseEdit,
    Replace,
    ToolParseFailure,
    ToolResult,
    ToolUse,
    TurnRole,
)
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
    for event in rest:
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
            add(_copied(event.body, new_call_ids))
    return bodies


def _copied(body: Body, new_call_ids: dict[int, int]) -> Body:
    if not isinstance(body, ToolResult):
        return body
    call_id = new_call_ids.get(body.call_id)
    if call_id is None:
        # Its call is not in the copied part: what is left of it is what the model read.
        return Message(TurnRole.TOOL, body.content, body.span)
    return ToolResult(call_id, body.content, body.span)
