"""Requests without a session: what is refused before anything runs, and what the job is made of."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.fixtures.session_core import DrivenBackend, SessionCore, session_core, tokens_of

from superfluid.config import GenerationConfig
from superfluid.domain.media import MediaFacts
from superfluid.domain.reply import ToolCallFinished
from superfluid.domain.request import (
    ChatPrompt,
    GenerationRequest,
    Message,
    QosClass,
    SamplingOverrides,
    TextPrompt,
    TokenPrompt,
)
from superfluid.errors import (
    ContextLengthExceededError,
    InvalidRequestError,
    InvalidValueError,
    ModelLoadingError,
    ShuttingDownError,
    SuperfluidError,
)
from superfluid.sessions.counter import ReplyCounter
from superfluid.sessions.service import ModelService

CHAT = ChatPrompt(messages=(Message(role="user", content="hi"),))


def service(core: SessionCore, generation: GenerationConfig | None = None) -> ModelService:
    """Without a store."""
    built = ModelService(
        "m",
        created_unix=0,
        backend=core.backend,
        generation=generation or GenerationConfig(),
        counter=core.counter,
        executor=ThreadPoolExecutor(1),
        infill=core.infill,
    )
    built.attach_text(core.text)
    return built


async def test_capabilities_say_whether_the_model_sees_images_or_why_not(core: SessionCore) -> None:
    blind = service(core).capabilities["vision"]
    assert isinstance(blind, str)
    assert "no images" in blind
    core.backend.media = MediaFacts(encoder="fake", fingerprint="0" * 16, placeholder_token=1)
    assert service(core).capabilities["vision"] is True


async def test_tools_that_the_template_shows_are_a_capability(
    core: SessionCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert service(core).capabilities["tools"] is True
    monkeypatch.setattr(type(core.text.codec), "shows_tools", False)
    assert service(core).capabilities["tools"] == "the chat template has no place for tools"


async def test_reasoning_and_filling_in_are_capabilities_of_a_vocabulary_that_has_markers_for_them(
    core: SessionCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [service(core).capabilities[name] for name in ("reasoning", "infill")] == [True, True]
    monkeypatch.setattr(type(core.text.codec), "knows_reasoning", False)
    monkeypatch.setattr(core.text.tokenizer, "infill_markers", None)
    capabilities = service(core).capabilities
    assert capabilities["reasoning"] == "the vocabulary has no markers around reasoning"
    assert "no tokens for it" in str(capabilities["infill"])


async def test_text_prompt_has_markers_only_if_its_writer_means_them(core: SessionCore) -> None:
    text = "<|im_start|>user\nhi"
    for has_markers in (False, True):
        await core.service.start(GenerationRequest(prompt=TextPrompt(text=text, has_markers=has_markers)))
    marker = core.text.tokenizer.special_tokens["<|im_start|>"]
    plain, framed = (job.tokens for job in core.backend.jobs)
    assert plain == list(text.encode())
    assert framed == [marker, *b"user\nhi"]


async def test_tools_that_the_template_does_not_show_are_told_of_once(
    core: SessionCore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tools = ({"type": "function", "function": {"name": "look"}},)
    request = GenerationRequest(prompt=ChatPrompt(messages=CHAT.messages, tools=tools))
    await core.service.start(request)
    assert caplog.messages == []
    monkeypatch.setattr(type(core.text.codec), "shows_tools", False)
    for _ in range(2):
        await core.service.start(request)
    assert caplog.messages == ["a request declares tools, which the chat template does not show the model"]


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (GenerationRequest(prompt=TextPrompt(text="")), InvalidRequestError),
        (GenerationRequest(prompt=TokenPrompt(tokens=())), InvalidRequestError),
        (GenerationRequest(prompt=TokenPrompt(tokens=(268,))), InvalidValueError),
        (GenerationRequest(prompt=TokenPrompt(tokens=(-1,))), InvalidValueError),
        (GenerationRequest(prompt=TokenPrompt(tokens=(1,) * 4096)), ContextLengthExceededError),
    ],
)
async def test_request_that_cannot_run_is_refused_and_neither_stored_nor_counted(
    core: SessionCore, request_: GenerationRequest, error: type[SuperfluidError]
) -> None:
    with pytest.raises(error):
        await core.service.start(request_)
    assert (core.backend.jobs, core.store.rows(), core.counter.running) == ([], [], 0)


async def test_conversation_whose_stored_form_is_too_long_is_refused(core: SessionCore) -> None:
    """Its reasoning, which the client does not send back, counts."""
    core.backend.answer = lambda _: "<think>" + "x" * 4000 + "</think>yes"
    reply = await core.service.start(GenerationRequest(prompt=CHAT))
    async for _ in reply:
        pass
    messages = (*CHAT.messages, Message(role="assistant", content="yes"), Message(role="user", content="y" * 90))
    with pytest.raises(ContextLengthExceededError):
        await core.service.start(GenerationRequest(prompt=ChatPrompt(messages=messages)))
    assert core.counter.running == 0


async def test_model_that_is_loading_or_a_daemon_that_drains_takes_no_request(core: SessionCore) -> None:
    loading = ModelService(
        "m",
        created_unix=0,
        backend=DrivenBackend(),
        generation=GenerationConfig(),
        counter=ReplyCounter(),
        executor=ThreadPoolExecutor(1),
        infill=core.infill,
    )
    assert not loading.is_ready
    with pytest.raises(ModelLoadingError):
        await loading.start(GenerationRequest(prompt=CHAT))
    core.counter.is_draining = True
    with pytest.raises(ShuttingDownError):
        await core.service.start(GenerationRequest(prompt=CHAT))


@pytest.mark.parametrize(
    ("asked", "default", "expected"), [(None, None, 4095), (5, 9, 5), (None, 9, 9), (9999, 9, 4095)]
)
async def test_tokens_are_those_asked_for_else_the_servers_default_else_the_room(
    core: SessionCore, asked: int | None, default: int | None, expected: int
) -> None:
    built = service(core, GenerationConfig(max_tokens=default))
    await built.start(GenerationRequest(prompt=TokenPrompt(tokens=(1,)), max_tokens=asked))
    assert core.backend.last.job.max_tokens == expected


async def test_job_carries_what_the_request_says(core: SessionCore) -> None:
    request = GenerationRequest(
        prompt=CHAT,
        sampling=SamplingOverrides(temperature=0.5, seed=7, logit_bias={3: 1.0}),
        ignore_eos=True,
        logprobs=2,
        qos=QosClass.BACKGROUND,
    )
    await core.service.start(request)
    job = core.backend.last.job
    assert (job.ignore_eos, job.logprobs, job.qos) == (True, 2, QosClass.BACKGROUND)
    assert (job.sampling.temperature, job.sampling.seed, job.sampling.logit_bias) == (0.5, 7, {3: 1.0})
    assert core.backend.last.tokens == list(tokens_of("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"))
    assert job.prompt_tokens == len(core.backend.last.tokens)


async def test_seed_is_fresh_if_none_is_asked_for_and_stored_with_the_session(core: SessionCore) -> None:
    for _ in range(2):
        await core.service.start(GenerationRequest(prompt=CHAT))
    seeds = [driven.job.sampling.seed for driven in core.backend.jobs]
    assert seeds[0] != seeds[1]
    await core.log.settled()
    assert [(await core.log.open(session)).state.params.seed for session in (1, 2)] == seeds


async def test_tokenize_adds_no_chat_frame(core: SessionCore) -> None:
    assert await core.service.tokenize("<think>") == list(b"<think>")


async def test_request_without_a_store_runs_all_the_same(core: SessionCore) -> None:
    core.backend.answer = lambda _: "yes"
    reply = await service(core).start(GenerationRequest(prompt=CHAT))
    async for batch in reply:
        last = batch[-1]
    assert last.completion_tokens == 4  # type: ignore[union-attr]
    assert core.store.rows() == []


async def test_calls_of_servers_that_both_count_from_one_have_different_names(tmp_path: Path) -> None:
    """A conversation that goes on behind a restart holds calls of both."""
    tools = ({"type": "function", "function": {"name": "f"}},)
    names: list[str] = []
    for life in ("first", "second"):
        async with session_core(tmp_path / f"{life}.db") as core:
            core.backend.answer = lambda _: '<tool_call>{"name":"f","arguments":{}}</tool_call>'
            reply = await core.service.start(GenerationRequest(prompt=ChatPrompt(messages=CHAT.messages, tools=tools)))
            assert reply.reply_id == 1
            events = [event async for batch in reply for event in batch]
            names += [event.call_id for event in events if isinstance(event, ToolCallFinished)]
    assert len(names) == 2
    assert names[0] != names[1]
