"""Which conversations count as the same, and how a rendering is cut into its messages' spans."""

from superfluid.domain.request import ChatPrompt, Message, ToolCall
from superfluid.sessions.conversation import conversation_digests, extended_digest, spans_of

USER = Message(role="user", content="hi")
CALL = Message(
    role="assistant", content="", tool_calls=(ToolCall(id="call_1", name="f", arguments='{"a": 1, "b": 2}'),)
)


def digests(*messages: Message, **fields: object) -> list[bytes]:
    return conversation_digests(ChatPrompt(messages=messages, **fields), b"codec")  # type: ignore[arg-type]


def test_digests_of_a_longer_conversation_begin_with_those_of_the_shorter() -> None:
    assert digests(USER, CALL)[:1] == digests(USER)
    assert extended_digest(digests(USER)[-1], CALL) == digests(USER, CALL)[-1]


def test_digest_leaves_out_what_clients_do_not_send_back_alike() -> None:
    echoed = Message(
        role="assistant",
        content="",
        reasoning="hmm",
        tool_calls=(ToolCall(id="other", name="f", arguments='{"b":2,"a":1}'),),
    )
    assert digests(USER, CALL) == digests(USER, echoed)


def test_digest_covers_role_text_name_tools_template_arguments_and_codec() -> None:
    base = digests(USER)
    assert base != digests(Message(role="system", content="hi"))
    assert base != digests(Message(role="user", content="hi "))
    assert base != digests(Message(role="user", content="hi", name="x"))
    assert base != digests(USER, tools=({"type": "function"},))
    assert base != digests(USER, template_kwargs={"enable_thinking": False})
    assert base != conversation_digests(ChatPrompt(messages=(USER,)), b"another codec")


def test_spans_cut_a_rendering_at_message_ends() -> None:
    assert spans_of([1, 2, 3, 4, 5], [2, 3], 0) == [(1, 2), (3,), (4, 5)]
    assert spans_of([1, 2, 3, 4, 5], [2, 3], 1) == [(3,), (4, 5)]
    assert spans_of([1, 2, 3, 4, 5], [2, 3], 2) == [(4, 5)]
