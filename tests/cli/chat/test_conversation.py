import json

from superfluid.cli.chat.conversation import Answered, Called, Conversation, Exchange, Said, Shown
from superfluid.domain import events
from superfluid.domain.events import Body, Event, GenParams
from superfluid.domain.media import ImagePayload, MediaIdentity
from superfluid.domain.reply import Channel

PARAMS = GenParams(0.0, 1.0, 0.0, 0, 1)
CREATED = events.Created(None, PARAMS)


def log(*bodies: Body) -> list[Event]:
    return [Event(index, 1, 5, body) for index, body in enumerate(bodies)]


def conversation(*bodies: Body) -> Conversation:
    return Conversation(7, log(*bodies))


def user(text: str) -> events.Message:
    return events.Message(1, text, (1, 2))


def said(text: str, finish: int = 0, channel: int = 0) -> events.Generated:
    return events.Generated((3,), text, channel, finish)


def test_messages_are_numbered_with_what_followed_them() -> None:
    folded = conversation(
        CREATED,
        events.Message(0, "Be brief.", (9,)),
        user("one"),
        events.GenerationPrompt((1,)),
        said("hm", channel=1),
        said("Hel"),
        said("lo.", finish=1),
        user("two"),
    )
    assert folded.system == "Be brief."
    assert folded.exchanges == [
        Exchange(1, 2, "one", [Said(Channel.REASONING, "hm"), Said(Channel.TEXT, "Hello.")]),
        Exchange(2, 7, "two", []),
    ]
    assert folded.next_number == 3
    assert folded.end_of(folded.exchanges[0]) == 7
    assert folded.end_of(folded.exchanges[1]) == 8
    assert folded.exchange(2) is folded.exchanges[1]
    assert folded.exchange(0) is None
    assert folded.exchange(3) is None


def test_tool_calls_are_parts_and_open_until_they_are_answered() -> None:
    opened: list[Body] = [CREATED, user("w"), said("{", channel=2), events.ToolUse("f", "{}"), said("", finish=1)]
    assert conversation(*opened).open_calls == [Called(3, "f", "{}")]
    answered = conversation(*opened, events.ToolResult(3, "rain", (4,)))
    assert answered.open_calls == []
    assert answered.exchanges[0].parts == [Called(3, "f", "{}"), Answered(3, "rain")]
    failed = conversation(*opened, events.ToolOutcome(3, 1, ""))
    assert failed.exchanges[0].parts[-1] == Answered(3, "no result")
    expired = conversation(*opened, events.ToolExpired(3, "lease elapsed"))
    assert expired.exchanges[0].parts[-1] == Answered(3, "lease elapsed")


def test_blocks_are_shown_in_a_few_words() -> None:
    image = json.dumps({"blob": "0123456789abcdef"})
    blob = "0123456789ab" + "c" * 52
    seen = ImagePayload(blob, 1024, 5, 7, "Look\nhere:", "What is it?", MediaIdentity("0" * 16, "fake")).encode()
    folded = conversation(
        CREATED,
        user("look"),
        events.Block(1, 7, image, (), 2),
        events.Block(1, 7, seen, (1,), 2),
        events.Block(1, 1, json.dumps({"path": "a.py"}), (), 2),
        events.Block(1, 4, "no json", (), 2),
        events.Block(1, 99, "[]", (), 2),
    )
    with_words = Shown("image 0123456789ab, 1,024 tokens: Look here: What is it?", blob)
    shown = [Shown("image 0123456789ab"), with_words, Shown("file diff a.py"), Shown("progress"), Shown("block")]
    assert folded.exchanges[0].parts == shown


def test_what_comes_before_the_first_message_is_of_no_exchange() -> None:
    folded = conversation(CREATED, events.Appended("raw", (1,)), said("x", finish=1), user("one"))
    assert folded.exchanges == [Exchange(1, 3, "one", [])]
    assert folded.preface == [Said(Channel.TEXT, "x")]


def test_reply_is_cut_until_it_has_its_end() -> None:
    assert not conversation(CREATED).is_cut
    assert conversation(CREATED).is_empty
    assert conversation(CREATED, user("one")).is_cut
    assert conversation(CREATED, user("one"), events.GenerationPrompt((1,))).is_cut
    cut = conversation(CREATED, user("one"), said("Hel"), events.Generated((), "", 0, 4))
    assert cut.is_cut
    assert cut.cut_run == Said(Channel.TEXT, "Hel")
    done = conversation(CREATED, user("one"), said("Hello", finish=1))
    assert not done.is_cut
    assert done.cut_run is None
    assert conversation(CREATED, user("one")).cut_run is None


def test_log_is_taken_in_piece_by_piece_and_nothing_twice() -> None:
    whole = log(CREATED, user("one"), said("Hel"), said("lo", finish=1))
    folded = Conversation(7, whole[:2])
    folded.extend(whole[1:3])
    folded.extend(whole)
    assert folded.length == 4
    assert folded.exchanges[0].parts == [Said(Channel.TEXT, "Hello")]


def test_fork_owns_what_it_added_only() -> None:
    folded = conversation(
        CREATED, user("one"), events.ToolUse("f", "{}"), events.MetaUpdated(1, "Parent", None),
        events.Forked(3, 4, PARAMS), events.ToolUse("g", "{}"),
    )  # fmt: skip
    assert folded.open_calls == [Called(5, "g", "{}")]
    assert folded.state.title is None
    assert folded.state.meta_version == 0
