"""What a generation begins with: header, parser, job."""

import array
from collections.abc import Sequence

import pytest
from tests.fixtures.session_core import END, PARAMS, fake_text, text_with_template, tokens_of

from superfluid.domain.events import (
    Appended,
    Block,
    Body,
    Created,
    Event,
    Generated,
    GenerationPrompt,
    GenParams,
    Message,
    QosSet,
    ToolResult,
)
from superfluid.domain.job import Job
from superfluid.domain.reply import Channel, Finish
from superfluid.domain.request import QosClass
from superfluid.domain.state import SessionState
from superfluid.sessions.opening import open_channel, turn_header, turn_job, turn_parser

TEXT = fake_text()
OPENER = tokens_of("<|im_start|>assistant\n")
CREATED = Created(None, PARAMS)
USER = Message(1, "hi", tokens_of(f"<|im_start|>user\nhi{END}\n"))
HEADER = GenerationPrompt(OPENER)


def fold(*bodies: Body) -> SessionState:
    state = SessionState(1)
    state.apply_all(Event(index, 1, 0, body) for index, body in enumerate(bodies))
    return state


def drawn(text: str, finish: Finish = Finish.NONE, channel: Channel = Channel.TEXT) -> Generated:
    return Generated(tokens_of(text), text, channel, finish)


def job_tokens(job: Job) -> list[int]:
    return array.array("i", job.tokens).tolist()


def test_message_of_any_role_and_tool_result_open_a_new_turn() -> None:
    for last in (Message(0, "s", (1,)), USER, Message(2, "a", (1,)), ToolResult(1, "r", (1,))):
        assert turn_header(fold(CREATED, last), TEXT.turns) == OPENER


def test_finished_reply_opens_a_new_turn_behind_a_separator() -> None:
    state = fold(CREATED, USER, HEADER, drawn(f"yes{END}", Finish.END_OF_TURN))
    assert turn_header(state, TEXT.turns) == (*tokens_of("\n"), *OPENER)


@pytest.mark.parametrize("finish", [f for f in Finish if f is not Finish.END_OF_TURN])
def test_reply_with_any_other_finish_is_continued_without_a_header(finish: Finish) -> None:
    assert turn_header(fold(CREATED, USER, HEADER, drawn("ye", finish)), TEXT.turns) == ()


def test_appended_tokens_blocks_and_a_bare_header_are_continued_without_a_header() -> None:
    for last in (Appended(None, (1,)), Block(1, 2, "{}", (1,), 2), HEADER):
        assert turn_header(fold(CREATED, USER, last), TEXT.turns) == ()


def feed(state: SessionState, text: str, header: Sequence[int] = ()) -> list[tuple[int, str, str]]:
    parser = turn_parser(state, header, TEXT.codec)
    return [(run.channel, run.text, run.raw) for run in parser.feed(tokens_of(text))]


def test_parser_goes_on_in_the_channel_that_was_left_open() -> None:
    state = fold(CREATED, USER, HEADER, drawn("<think>h", Finish.CANCELLED, Channel.REASONING))
    assert feed(state, "m</think>ok") == [(1, "m", ""), (0, "ok", "")]


def test_parser_goes_on_inside_a_tool_call_with_what_it_holds() -> None:
    state = fold(CREATED, USER, HEADER, drawn('<tool_call>{"name":', Finish.LENGTH, Channel.TOOL_CALL))
    assert feed(state, '"f"}</tool_call>') == [(2, '"f"}', '{"name":"f"}')]


def test_parser_goes_on_inside_a_character() -> None:
    state = fold(CREATED, USER, HEADER, Generated(("é".encode()[0],), "", 0, Finish.LENGTH))
    parser = turn_parser(state, (), TEXT.codec)
    assert [run.text for run in parser.feed(["é".encode()[1]])] == ["é"]


def test_parser_goes_on_through_tokens_a_client_appended_to_the_reply() -> None:
    state = fold(CREATED, USER, HEADER, drawn("a", Finish.CANCELLED), Appended(None, tokens_of("<think>")))
    assert feed(state, "hm") == [(1, "hm", "")]
    prefilled = fold(CREATED, USER, HEADER, Appended(None, tokens_of("<think>so")))
    assert feed(prefilled, "hm") == [(1, "hm", "")]


def test_parser_behind_raw_input_takes_the_channel_that_the_input_left_open() -> None:
    assert feed(fold(CREATED, Appended(None, tokens_of("x<think>")), Appended(None, tokens_of("y"))), "z") == [
        (1, "z", "")
    ]
    assert feed(fold(CREATED, Appended(None, tokens_of("<think>y</think>"))), "z") == [(0, "z", "")]


def test_parser_of_a_new_turn_knows_nothing_of_the_one_before() -> None:
    state = fold(CREATED, USER, HEADER, drawn("<think>h", Finish.CANCELLED, Channel.REASONING), USER)
    assert feed(state, "ok", OPENER) == [(0, "ok", "")]


def test_header_that_opens_reasoning_is_seen() -> None:
    state = fold(CREATED, USER)
    assert feed(state, "hm", tokens_of("<|im_start|>assistant\n<think>\n")) == [(1, "hm", "")]


def test_channel_of_a_record_without_tokens_is_the_one_left_open() -> None:
    state = fold(CREATED, USER, HEADER, drawn("<think>h", Finish.NONE, Channel.REASONING))
    assert open_channel(state, ()) is Channel.REASONING
    assert open_channel(state, OPENER) is Channel.TEXT
    assert open_channel(fold(CREATED, USER, HEADER), ()) is Channel.TEXT


def test_job_counts_as_reply_what_was_drawn_last_and_nothing_else() -> None:
    opened = fold(CREATED, USER)
    job = turn_job(7, opened, OPENER, 5, 100)
    assert (job.job_id, job.prompt_tokens, job.max_tokens) == (7, len(opened.tokens) + len(OPENER), 5)
    assert job_tokens(job) == [*opened.tokens, *OPENER]

    cut = fold(CREATED, USER, HEADER, drawn("abc", Finish.CANCELLED))
    job = turn_job(7, cut, (), 5, 100)
    assert (len(job_tokens(job)), job.prompt_tokens) == (len(cut.tokens), len(cut.tokens) - 3)

    prefilled = fold(CREATED, USER, HEADER, drawn("abc"), Appended(None, tokens_of("def")))
    assert turn_job(7, prefilled, (), 5, 100).prompt_tokens == len(prefilled.tokens)


def test_job_of_a_reply_with_nothing_before_it_has_a_prompt_all_the_same() -> None:
    """A rebase can drop everything in front of a reply."""
    assert turn_job(1, fold(CREATED, drawn("abc")), (), 5, 100).prompt_tokens == 1


def test_job_is_bounded_by_the_window() -> None:
    state = fold(CREATED, USER, HEADER, drawn("abc"))
    assert turn_job(1, state, (), 1000, len(state.tokens) + 2).max_tokens == 2


def test_job_is_scheduled_as_its_session_was_told_last() -> None:
    job = turn_job(1, fold(CREATED, USER), (), 1, 100)
    assert (job.qos, job.is_batch_invariant) == (QosClass.AGENT, False)
    state = fold(CREATED, USER, QosSet(0, False), QosSet(3, True))
    job = turn_job(1, state, (), 1, 100)
    assert (job.qos, job.is_batch_invariant, job.session) == (QosClass.BACKGROUND, True, state.session)


NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (GenParams(0.75, 0.5, 0.25, 20, 2**64 - 1), (0.75, 0.5, 0.25, 20, 2**64 - 1)),
        (GenParams(-1.0, 1.0, 0.0, 0, 1), (0.0, 1.0, 0.0, 0, 1)),
        (GenParams(NAN, NAN, NAN, 0, 1), (0.0, 1.0, 0.0, 0, 1)),
        (GenParams(1.0, INFINITY, INFINITY, 0, 1), (1.0, 1.0, 1.0, 0, 1)),
        (GenParams(1.0, -INFINITY, -1.0, 2**32 - 1, 1), (1.0, 0.0, 0.0, 2**32 - 1, 1)),
    ],
)
def test_any_stored_numbers_become_parameters_that_mean_something(
    params: GenParams, expected: tuple[float, ...]
) -> None:
    sampling = turn_job(1, fold(Created(None, params), USER), (), 1, 100).sampling
    assert (sampling.temperature, sampling.top_p, sampling.min_p, sampling.top_k, sampling.seed) == expected


def test_templates_without_a_header_open_turns_with_nothing() -> None:
    text = text_with_template(
        "{%- for m in messages %}{%- if m.role == 'assistant' %}{{ m.content + '<|im_end|>' }}"
        "{%- else %}{{ '[' + m.content + ']' }}{%- endif %}{%- endfor %}"
    )
    assert text.turns.has_turns
    assert turn_header(fold(CREATED, USER), text.turns) == ()
