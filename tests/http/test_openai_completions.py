"""Text completions: the request's fields, whole answers and chunks."""

from typing import Any

import msgspec
import pytest

from superfluid.domain.reply import (
    Channel,
    Finish,
    ReplyEvent,
    ReplyFinished,
    TextDelta,
    TokenAlternative,
    TokenLogprob,
)
from superfluid.domain.request import GenerationRequest, InfillPrompt, SamplingOverrides, TextPrompt, TokenPrompt
from superfluid.errors import CallerError, ContextLengthExceededError
from superfluid.http.collect import CollectedReply, ReplyProgress
from superfluid.http.dialect import Opening
from superfluid.http.openai_completions import CompletionExchange, CompletionsDialect

OPENING = Opening(reply_id=9, model_id="m", created_unix=100, prompt_tokens=7)
FINISHED = ReplyFinished(Finish.LENGTH, 7, 3, 2)


def _parse(**fields: Any) -> CompletionExchange:
    return CompletionsDialect().parse(msgspec.json.encode({"model": "m", "prompt": "Once", **fields}))


def _entry(piece: bytes) -> TokenLogprob:
    return TokenLogprob(TokenAlternative(1, piece, -0.5), (TokenAlternative(2, b"alt", -1.0),))


def test_parse_takes_the_prompt_with_no_frame_and_no_calls() -> None:
    request = _parse(max_tokens=5, temperature=0, stop="\n", ignore_eos=True, logprobs=3, logit_bias={"4": 1}).requests[
        0
    ]
    assert request == GenerationRequest(
        prompt=TextPrompt(text="Once"),
        sampling=SamplingOverrides(temperature=0, logit_bias={4: 1}),
        max_tokens=5,
        stop=("\n",),
        ignore_eos=True,
        logprobs=3,
        parse_tools=False,
    )


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        (["Once"], TextPrompt(text="Once")),
        ([1, 2], TokenPrompt(tokens=(1, 2))),
        ([[1, 2]], TokenPrompt(tokens=(1, 2))),
    ],
)
def test_parse_prompt_in_a_list_of_one(prompt: Any, expected: TextPrompt | TokenPrompt) -> None:
    assert _parse(prompt=prompt).requests[0].prompt == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"suffix": "end"}, InfillPrompt(prefix="Once", suffix="end")),
        ({"suffix": ""}, InfillPrompt(prefix="Once", suffix="")),
        ({"suffix": "end", "prompt": ""}, InfillPrompt(prefix="", suffix="end")),
        ({"suffix": "end", "prompt": ["a"]}, InfillPrompt(prefix="a", suffix="end")),
        ({"suffix": "end", "fim_mode": "SPM"}, InfillPrompt(prefix="Once", suffix="end", is_suffix_first=True)),
        ({"suffix": "end", "fim_mode": "Psm", "echo": False}, InfillPrompt(prefix="Once", suffix="end")),
    ],
)
def test_parse_with_a_suffix_fills_in_the_middle(fields: dict[str, Any], expected: InfillPrompt) -> None:
    exchange = _parse(**fields)
    assert exchange.requests[0].prompt == expected
    assert exchange.is_infill
    assert not _parse().is_infill


@pytest.mark.parametrize(
    ("finished", "text", "extras"),
    [
        (FINISHED, "upon", {"cached": False, "expired": False}),
        (ReplyFinished(Finish.LENGTH, 7, 7, 2, is_cached=True), "upon", {"cached": True, "expired": False}),
        (ReplyFinished(Finish.LENGTH, 7, 0, 2, is_expired=True), "", {"cached": False, "expired": True}),
    ],
)
def test_answer_with_a_suffix_says_how_it_came_about(
    finished: ReplyFinished, text: str, extras: dict[str, bool]
) -> None:
    reply = CollectedReply((TextDelta(Channel.TEXT, "upon", 2),), (), finished, "length")
    answer = msgspec.json.decode(_parse(suffix="end").answer(OPENING, [reply]).body)
    assert answer["choices"][0]["text"] == text
    assert answer["superfluid"] == {**extras, "served_by": "m"}
    assert "superfluid" not in msgspec.json.decode(_parse().answer(OPENING, [reply]).body)


def test_stream_with_a_suffix_says_in_its_last_chunk_how_it_came_about() -> None:
    progress = ReplyProgress()
    writer = _parse(suffix="end", stream=True).stream_writer(OPENING, progress)
    batch: list[ReplyEvent] = [
        TextDelta(Channel.TEXT, "a", 1),
        ReplyFinished(Finish.END_OF_TURN, 7, 7, 1, is_cached=True),
    ]
    progress.note(batch)
    *chunks, _, _ = writer.feed(batch).split(b"\n\n")
    last = msgspec.json.decode(chunks[-1].removeprefix(b"data: "))
    assert last["superfluid"] == {"warm": 7, "cached": True, "expired": False, "served_by": "m"}
    assert last["choices"][0]["finish_reason"] == "stop"


def test_parse_n_is_not_read() -> None:
    assert len(_parse(n=3).requests) == 1


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"model": None}, "invalid_request", "model"),
        ({"prompt": None}, "invalid_request", "prompt"),
        ({"prompt": ""}, "invalid_request", "prompt"),
        ({"prompt": []}, "invalid_request", "prompt"),
        ({"prompt": [""]}, "invalid_request", "prompt"),
        ({"prompt": ["a", "b"]}, "invalid_request", "prompt"),
        ({"prompt": [1, -1]}, "invalid_request", "prompt"),
        ({"prompt": [1, True]}, "invalid_request", "prompt"),
        ({"prompt": [[1], [2]]}, "invalid_request", "prompt"),
        ({"prompt": 5}, "invalid_request", "prompt"),
        ({"prompt": [1], "echo": True}, "unsupported_parameter", "echo"),
        ({"fim_mode": "psm"}, "unsupported_parameter", "fim_mode"),
        ({"suffix": "end", "fim_mode": "middle-out"}, "invalid_value", "fim_mode"),
        ({"suffix": "end", "echo": True}, "unsupported_parameter", "echo"),
        ({"suffix": "end", "logprobs": 0}, "unsupported_parameter", "logprobs"),
        ({"suffix": "end", "prompt": None}, "invalid_request", "prompt"),
        ({"suffix": "end", "prompt": [1, 2]}, "invalid_request", "prompt"),
        ({"suffix": "end", "prompt": ["a", "b"]}, "invalid_request", "prompt"),
        ({"logprobs": 21}, "invalid_value", "logprobs"),
        ({"logprobs": True}, "invalid_request", "logprobs"),
        ({"top_p": 2}, "invalid_value", "top_p"),
        ({"max_tokens": 0}, "invalid_value", "max_tokens"),
    ],
)
def test_parse_bad_field_is_refused_by_name(fields: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(CallerError) as failure:
        _parse(**fields)
    assert (failure.value.code, failure.value.param) == (code, param)


def test_answer_is_everything_the_model_wrote() -> None:
    reply = CollectedReply(
        (TextDelta(Channel.REASONING, "hm ", 1), TextDelta(Channel.TEXT, "upon", 2)), (), FINISHED, "length"
    )
    answer = msgspec.json.decode(_parse().answer(OPENING, [reply]).body)
    assert (answer["id"], answer["object"]) == ("cmpl-superfluid-9", "text_completion")
    assert answer["choices"] == [{"index": 0, "text": "hm upon", "logprobs": None, "finish_reason": "length"}]
    assert answer["usage"]["total_tokens"] == 9


def test_answer_with_echo_shifts_the_offsets_by_the_prompts_bytes() -> None:
    runs = (TextDelta(Channel.TEXT, "é", 1, (_entry("é".encode()),)), TextDelta(Channel.TEXT, "b", 2, (_entry(b"b"),)))
    exchange = _parse(prompt="né", echo=True, logprobs=1)
    choice = msgspec.json.decode(exchange.answer(OPENING, [CollectedReply(runs, (), FINISHED, "stop")]).body)[
        "choices"
    ][0]
    assert choice["text"] == "nééb"
    assert choice["logprobs"] == {
        "tokens": ["é", "b"],
        "token_logprobs": [-0.5, -0.5],
        "top_logprobs": [{"alt": -1.0}, {"alt": -1.0}],
        "text_offset": [3, 5],
    }


def test_stream_echoes_then_writes_deltas_with_rising_offsets_and_ends_with_usage() -> None:
    progress = ReplyProgress()
    writer = _parse(echo=True, logprobs=0, stream=True).stream_writer(OPENING, progress)
    data = writer.begin()
    batches: list[list[ReplyEvent]] = [
        [TextDelta(Channel.TEXT, "a", 1, (_entry(b"a"),))],
        [TextDelta(Channel.TEXT, "b", 2, (_entry(b"b"),)), FINISHED],
    ]
    for batch in batches:
        progress.note(batch)
        data += writer.feed(batch)
    *frames, done, _ = data.split(b"\n\n")
    chunks = [msgspec.json.decode(frame.removeprefix(b"data: ")) for frame in frames]
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [choice["text"] for choice in choices] == ["Once", "a", "b", ""]
    assert [choice["finish_reason"] for choice in choices] == [None, None, None, "length"]
    assert [choice["logprobs"] and choice["logprobs"]["text_offset"] for choice in choices] == [None, [4], [5], None]
    assert chunks[-1]["usage"]["completion_tokens"] == 2
    assert done == b"data: [DONE]"


def test_stream_without_echo_begins_with_the_first_text() -> None:
    assert _parse(stream=True).stream_writer(OPENING, ReplyProgress()).begin() == b""


def test_error_about_the_length_of_a_conversation_names_the_prompt_here() -> None:
    error = ContextLengthExceededError("too long", param="messages")
    body = msgspec.json.decode(CompletionsDialect().error_body(error))["error"]
    assert (body["param"], body["code"]) == ("prompt", "context_length_exceeded")
