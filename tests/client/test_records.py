"""Parameters and records, to JSON and back."""

import json
import math

import pytest
from superfluid_client import Drop, Event, Finish, Replace, Role, Sampling, ToolCall


def test_sampling_largest_seed_survives_json_exactly() -> None:
    sampling = Sampling(temperature=0.7, seed=2**64 - 1)
    assert Sampling.from_json(json.loads(json.dumps(sampling.to_json()))) == sampling


def test_sampling_json_has_all_five_fields() -> None:
    assert set(Sampling().to_json()) == {"temperature", "top_p", "min_p", "top_k", "seed"}


def test_sampling_null_number_is_not_a_number() -> None:
    assert math.isnan(Sampling.from_json({**Sampling().to_json(), "top_p": None}).top_p)


def test_edits_json_is_the_documented_one() -> None:
    assert Drop(2, 4).to_json() == {"Drop": {"from": 2, "to": 4}}
    expected = {"Replace": {"from": 4, "to": 6, "role": 2, "text": "x"}}
    assert Replace(4, 6, "x", Role.ASSISTANT).to_json() == expected


def test_tool_call_arguments_become_keywords() -> None:
    assert ToolCall(4, "f", '{"city":"Paris"}').json() == {"city": "Paris"}
    assert ToolCall(4, "f", "").json() == {}


@pytest.mark.parametrize("arguments", ["[1]", "{", '"x"'])
def test_tool_call_arguments_that_are_no_object_raise(arguments: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        ToolCall(4, "f", arguments).json()


def test_event_without_fields_has_its_name() -> None:
    event = Event.from_json({"event_id": 2, "epoch": 2, "ts_unix_ms": 0, "body": "EpochBump"})
    assert (event.id, event.kind, dict(event.fields), event.text, event.span) == (2, "EpochBump", {}, "", [])


def test_event_with_two_kinds_raises() -> None:
    with pytest.raises(ValueError, match="one key"):
        Event.from_json({"event_id": 2, "epoch": 2, "ts_unix_ms": 0, "body": {"A": {}, "B": {}}})


def test_finish_is_its_number_and_reads_as_words() -> None:
    assert Finish(2) == 2
    assert f"{Finish.END_OF_TURN}, {Finish.LENGTH!s}" == "end of turn, length"
