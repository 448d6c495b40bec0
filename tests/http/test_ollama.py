"""Ollama's two generating routes: what their fields become, and what is refused. No server."""

import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixtures.fuzzing.bodies import ANY_JSON, parses_or_is_the_callers_fault
from tests.fixtures.http_server import FrontEnd
from tests.fixtures.scripted_models import ScriptedModel

from superfluid.domain.request import (
    ChatPrompt,
    GenerationRequest,
    InfillPrompt,
    Message,
    Prompt,
    SamplingOverrides,
    TextPrompt,
)
from superfluid.errors import CallerError
from superfluid.http.ollama import OllamaChatDialect, OllamaGenerateDialect, ollama_dialects
from superfluid.http.ollama_fields import UnusedOptionsLog
from superfluid.http.ollama_pages import REFUSALS
from superfluid.http.ollama_records import OllamaExchange
from superfluid.http.ollama_types import GenerateBody, Options

CHAT = OllamaChatDialect(UnusedOptionsLog())
GENERATE = OllamaGenerateDialect(UnusedOptionsLog())
HELLO = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def _chat(**fields: Any) -> OllamaExchange:
    return CHAT.parse(msgspec.json.encode({"model": "m", "messages": HELLO, **fields}))


def _generate(**fields: Any) -> OllamaExchange:
    return GENERATE.parse(msgspec.json.encode({"model": "m", "prompt": "Once", **fields}))


def _request(**options: Any) -> GenerationRequest:
    return _chat(options=options).requests[0]


def test_chat_streams_unless_told_otherwise_and_leaves_the_rest_to_the_defaults() -> None:
    exchange = _chat()
    prompt = ChatPrompt(messages=(Message(role="user", content="Hi"),))
    assert exchange.requests == (GenerationRequest(prompt=prompt, parse_tools=False),)
    assert (exchange.model, exchange.is_stream, exchange.is_infill) == ("m", True, False)
    assert not _chat(stream=False).is_stream
    assert _chat(stream=None).is_stream


def test_null_is_absent() -> None:
    names = ["format", "options", "keep_alive", "think", "tools", "logprobs", "top_logprobs"]
    assert _chat(**dict.fromkeys(names)).requests == _chat().requests


def test_null_of_an_unknown_name_is_absent_too() -> None:
    assert _chat(newest=None, options={"newer": None, "seed": 3}) == _chat(options={"seed": 3})
    for fields in ({"newest": 0, "x": None}, {"options": {"newer": 0, "x": None}}):
        with pytest.raises(CallerError, match="unknown field `new"):
            _chat(**fields)


def test_options_are_the_sampling() -> None:
    request = _request(
        num_predict=5,
        temperature=3,
        top_k=4,
        top_p=0.5,
        min_p=0.1,
        seed=7,
        stop=["a", "b"],
        repeat_penalty=1.5,
        presence_penalty=-2,
        frequency_penalty=2,
    )
    assert request.sampling == SamplingOverrides(
        temperature=3,
        top_k=4,
        top_p=0.5,
        min_p=0.1,
        seed=7,
        repeat_penalty=1.5,
        presence_penalty=-2,
        frequency_penalty=2,
    )
    assert (request.max_tokens, request.stop) == (5, ("a", "b"))


@pytest.mark.parametrize("count", [-1, -2, 2**40])
def test_num_predict_without_a_bound_lets_the_window_decide(count: int) -> None:
    assert _request(num_predict=count).max_tokens == 2**31 - 1


def test_seed_of_minus_one_is_a_random_one() -> None:
    assert _request(seed=-1).sampling.seed is None


def test_temperature_of_any_size_stays_one_that_can_be_stored() -> None:
    assert _request(temperature=1e300, repeat_penalty=1e300).sampling == SamplingOverrides(
        temperature=1000.0, repeat_penalty=1000.0
    )


def test_options_without_effect_are_taken_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "superfluid_daemon")
    chat, generate = ollama_dialects().values()
    options = {"num_ctx": 4096, "num_gpu": 1, "mirostat": 0, "temperature": 1}
    for _ in range(2):
        chat.parse(msgspec.json.encode({"model": "m", "messages": HELLO, "options": options}))
        generate.parse(msgspec.json.encode({"model": "m", "prompt": "x", "options": options}))
    assert [record.args for record in caplog.records] == [("num_ctx",), ("num_gpu",), ("mirostat",)]


@pytest.mark.parametrize(
    ("think", "kwargs"),
    [
        (None, {}),
        ("", {}),
        (True, {"enable_thinking": True}),
        (False, {"enable_thinking": False}),
        ("high", {"enable_thinking": True, "reasoning_effort": "high"}),
    ],
)
def test_think_is_told_to_the_template(think: Any, kwargs: dict[str, Any]) -> None:
    for exchange in (_chat(think=think), _generate(think=think)):
        prompt = exchange.requests[0].prompt
        assert isinstance(prompt, ChatPrompt)
        assert prompt.template_kwargs == kwargs


def test_tools_are_declared_and_calls_are_looked_for() -> None:
    request = _chat(tools=[{"function": TOOL["function"]}]).requests[0]
    assert isinstance(request.prompt, ChatPrompt)
    assert (request.prompt.tools, request.parse_tools) == ((TOOL,), True)
    assert not _chat(tools=[]).requests[0].parse_tools


@pytest.mark.parametrize("keep_alive", [0, -1, 300, 1.5, "5m", "1h30m", "-1", "-1s", "0", "500ms", "1.5h", ""])
def test_keep_alive_is_any_duration(keep_alive: Any) -> None:
    assert _chat(keep_alive=keep_alive) == _chat()


def test_logprobs_are_asked_for() -> None:
    assert _chat(logprobs=True).requests[0].logprobs == 0
    assert _generate(logprobs=True, top_logprobs=20).requests[0].logprobs == 20
    assert _chat(logprobs=False, top_logprobs=0).requests[0].logprobs is None


@pytest.mark.parametrize(
    ("fields", "prompt", "route"),
    [
        ({}, ChatPrompt(messages=(Message(role="user", content="Once"),)), "POST /v1/chat/completions"),
        (
            {"system": "Be brief", "suffix": ""},
            ChatPrompt(messages=(Message(role="system", content="Be brief"), Message(role="user", content="Once"))),
            "POST /v1/chat/completions",
        ),
        (
            {"system": "Be brief", "prompt": ""},
            ChatPrompt(messages=(Message(role="system", content="Be brief"),)),
            "POST /v1/chat/completions",
        ),
        ({"raw": True, "system": ""}, TextPrompt(text="Once", has_markers=True), "POST /v1/completions"),
        ({"suffix": "end"}, InfillPrompt(prefix="Once", suffix="end"), "POST /v1/completions"),
        ({"suffix": "end", "prompt": None, "raw": True}, InfillPrompt(prefix="", suffix="end"), "POST /v1/completions"),
        ({"suffix": "end", "think": False}, InfillPrompt(prefix="Once", suffix="end"), "POST /v1/completions"),
    ],
)
def test_generate_is_a_chat_of_one_message_or_raw_or_fills_in(
    fields: dict[str, Any], prompt: Prompt, route: str
) -> None:
    exchange = _generate(**fields)
    assert (exchange.requests[0].prompt, exchange.route) == (prompt, route)
    assert exchange.is_infill == isinstance(prompt, InfillPrompt)
    assert not exchange.requests[0].parse_tools


def test_stop_goes_with_raw_and_with_a_suffix() -> None:
    for fields in ({"raw": True}, {"suffix": "end"}):
        assert _generate(options={"stop": "\n"}, **fields).requests[0].stop == ("\n",)


@pytest.mark.parametrize(
    "exchange", [_chat(messages=[]), _chat(messages=None), _generate(prompt=""), _generate(prompt="", raw=True)]
)
def test_request_without_a_prompt_generates_nothing(exchange: OllamaExchange) -> None:
    assert exchange.requests == ()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"model": None}, "names no model"),
        ({"model": ""}, "names no model"),
        ({"model": 5}, "model: expected `string | null`"),
        ({"stream": "no"}, "stream: expected"),
        ({"temperature": 1}, "unknown field `temperature`"),
        ({"options": {"temprature": 1}}, "options: object contains unknown field `temprature`"),
        ({"options": []}, "options: expected `object | null`"),
        ({"options": {"num_predict": 0}}, "num_predict must be at least 1"),
        ({"options": {"num_predict": -3}}, "num_predict must be at least 1"),
        ({"options": {"num_predict": "5"}}, "options.num_predict: expected"),
        ({"options": {"temperature": -1}}, "temperature must be at least 0"),
        ({"options": {"top_p": 1.1}}, "top_p must be between 0 and 1"),
        ({"options": {"min_p": -1}}, "min_p must be between 0 and 1"),
        ({"options": {"top_k": -2}}, "top_k must be at least 0"),
        ({"options": {"repeat_penalty": 0}}, "repeat_penalty must be greater than 0"),
        ({"options": {"presence_penalty": 3}}, "presence_penalty must be between"),
        ({"options": {"frequency_penalty": -3}}, "frequency_penalty must be between"),
        ({"options": {"stop": ["a", ""]}}, "stop must not hold an empty string"),
        ({"options": {"num_ctx": "big"}}, "options.num_ctx: expected"),
        ({"think": "loudly"}, "think must be true, false or one of"),
        ({"think": 1}, "think: expected"),
        ({"format": "json"}, "cannot force JSON yet"),
        ({"format": {"type": "object"}}, "cannot force JSON yet"),
        ({"format": "xml"}, "format must be 'json' or a JSON schema"),
        ({"keep_alive": "soon"}, "keep_alive must be seconds"),
        ({"keep_alive": True}, "keep_alive: expected"),
        ({"top_logprobs": 3}, "top_logprobs needs logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs must be between"),
    ],
)
def test_bad_field_of_either_route_is_refused_by_name(fields: dict[str, Any], says: str) -> None:
    for dialect, prompt in ((CHAT, {"messages": HELLO}), (GENERATE, {"prompt": "Once"})):
        with pytest.raises(CallerError) as failure:
            dialect.parse(msgspec.json.encode({"model": "m", **prompt, **fields}))
        assert says in msgspec.json.decode(dialect.error_body(failure.value))["error"]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"images": ["aGk="]}, "text only"),
        ({"template": "{{ .Prompt }}"}, "template is the model file's own"),
        ({"context": [1, 2]}, "/api/chat takes the whole conversation"),
        ({"raw": True, "system": "x"}, "system does not go with raw"),
        ({"raw": True, "think": True}, "think does not go with raw"),
        ({"suffix": "x", "system": "x"}, "system does not go with a suffix"),
        ({"suffix": "x", "think": "low"}, "think does not go with a suffix"),
        ({"suffix": "x", "logprobs": True}, "logprobs does not go with a suffix"),
        ({"suffix": "x", "format": "json"}, "cannot force JSON yet"),
        ({"messages": []}, "unknown field `messages`"),
    ],
)
def test_field_that_generate_has_no_place_for_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(CallerError, match=says):
        _generate(**fields)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"model":"m","x":NaN}', b'{"options":' + b"[" * 100_000])
def test_malformed_body_is_refused(body: bytes) -> None:
    for dialect in (CHAT, GENERATE):
        with pytest.raises(CallerError, match=r"request body|options"):
            dialect.parse(body)


def test_page_about_the_api_names_every_option_and_every_route() -> None:
    page = (Path(__file__).parents[2] / "docs" / "ollama.md").read_text(encoding="utf-8")
    routes = [*ollama_dialects(), *(path.partition("{")[0] for path in REFUSALS), "/api/tags", "/api/ps", "/api/show"]
    names = {*Options.__struct_fields__, *GenerateBody.__struct_fields__} - {"model", "prompt"}
    assert [name for name in sorted(names) if f"`{name}`" not in page] == []
    assert [route for route in routes if route not in page] == []


_MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "system"])},
    optional={
        "content": st.text() | ANY_JSON,
        "tool_calls": st.lists(
            st.fixed_dictionaries(
                {"function": st.fixed_dictionaries({"name": st.text()}, optional={"arguments": ANY_JSON})},
                optional={"id": ANY_JSON},
            ),
            max_size=2,
        ),
        "tool_name": ANY_JSON,
        "images": ANY_JSON,
    },
)
_OPTIONS = st.dictionaries(
    st.sampled_from(
        ["num_predict", "temperature", "top_k", "seed", "stop", "repeat_penalty", "num_ctx", "mirostat", "x"]
    ),
    ANY_JSON,
    max_size=2,
)
_NOISE = st.dictionaries(
    st.sampled_from(
        [
            "model",
            "stream",
            "format",
            "options",
            "keep_alive",
            "think",
            "tools",
            "prompt",
            "suffix",
            "raw",
            "system",
            "template",
            "context",
            "images",
            "logprobs",
            "top_logprobs",
            "messages",
            "x",
        ]
    ),
    ANY_JSON,
    max_size=2,
)
_BODIES = st.fixed_dictionaries({"model": st.just("m")}, optional={"options": _OPTIONS, "stream": st.booleans()})
_CHAT_BODIES = st.fixed_dictionaries({"messages": st.lists(_MESSAGE, max_size=4)})
_GENERATE_BODIES = st.fixed_dictionaries({"prompt": st.text()}, optional={"suffix": st.text(), "raw": st.booleans()})


@given(st.sampled_from([CHAT, GENERATE]), st.binary(max_size=60))
def test_any_bytes_parse_or_are_the_callers_fault(
    dialect: OllamaChatDialect | OllamaGenerateDialect, body: bytes
) -> None:
    parses_or_is_the_callers_fault(dialect, body)


@given(
    st.tuples(st.just("/api/chat"), _CHAT_BODIES) | st.tuples(st.just("/api/generate"), _GENERATE_BODIES),
    _BODIES,
    _NOISE,
)
@settings(max_examples=40)
async def test_any_json_is_answered_or_refused_in_ollamas_form(
    route: tuple[str, dict[str, Any]], body: dict[str, Any], noise: dict[str, Any]
) -> None:
    path, prompt = route
    front = FrontEnd(ScriptedModel(model_id="m"))
    async with front.client() as client:
        response = await client.post(path, content=msgspec.json.encode({**body, **prompt, **noise}))
    records = [msgspec.json.decode(line) for line in response.content.splitlines()]
    if response.status_code == 200:
        assert records[-1]["done"] is True
    else:
        assert 400 <= response.status_code < 500
        assert [set(record) for record in records] == [{"error"}]


@given(
    st.tuples(st.just(CHAT), _CHAT_BODIES) | st.tuples(st.just(GENERATE), _GENERATE_BODIES),
    _BODIES,
    _NOISE,
)
def test_any_json_parses_or_is_the_callers_fault(
    route: tuple[OllamaChatDialect | OllamaGenerateDialect, dict[str, Any]], body: dict[str, Any], noise: dict[str, Any]
) -> None:
    dialect, prompt = route
    parses_or_is_the_callers_fault(dialect, msgspec.json.encode({**body, **prompt, **noise}))
