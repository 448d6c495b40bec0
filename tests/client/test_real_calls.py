"""Every call of both clients against a real daemon. The same lines speak to both: ``done`` awaits what is to be."""

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from superfluid_client import (
    BlockKind,
    CallState,
    Drop,
    Finish,
    MediaSweep,
    PermissionPending,
    PurgeMode,
    QosClass,
    RequestRefused,
    Role,
    Sampling,
    SessionPurged,
    Throttled,
    TreeNode,
    VersionConflict,
)
from tests.client.real_server import RealServer
from tests.fixtures.images import picture

WEATHER = {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
IMAGE_TOKENS = 20
SCRIPT = {
    "replies": [
        {"when": "It rains.", "text": "Take an umbrella."},
        {"when": "weather", "text": CALL},
        {"text": "Rhine, Rhône, Po."},
    ],
    "image_tokens": IMAGE_TOKENS,
}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    with RealServer(tmp_path_factory.mktemp("home"), SCRIPT) as server:
        yield server


@pytest.fixture(params=["blocking", "asyncio"])
def sf(request: pytest.FixtureRequest, daemon: RealServer) -> Any:
    return daemon.sf if request.param == "blocking" else daemon.async_client()


async def done(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


async def streamed(stream: Any) -> list[Any]:
    return [chunk async for chunk in stream] if hasattr(stream, "__aiter__") else list(stream)


async def following(watch: Any) -> Any:
    return await anext(watch) if hasattr(watch, "__anext__") else next(watch)


async def calling_session(sf: Any) -> tuple[Any, Any]:
    """A session that waits for the result of a call."""
    session = await done(sf.session(Sampling(seed=1), system="Use the tools.", tools=[WEATHER]))
    await done(session.user("How is the weather in Paris?"))
    (call,) = (await done(session.generate(256))).tool_calls
    return session, call


async def test_real_session_is_made_found_listed_and_read(sf: Any) -> None:
    session = await done(sf.session(Sampling(seed=7), system="Be brief."))
    await done(session.user("Name three rivers."))
    chunks = await streamed(session.stream(64))
    assert "".join(chunk.text for chunk in chunks) == session.last_reply.text == "Rhine, Rhône, Po."
    again = await done(sf.get(session.id))
    assert (again.id, sf.session_of(session.id).id) == (session.id, session.id)
    assert await done(again.event_count()) == len(await done(again.events()))
    assert [message.role for message in await done(again.messages())] == ["system", "user", "assistant"]
    inspection = await done(again.inspect())
    assert inspection.sampling.seed == 7
    assert inspection.last_finish is Finish.END_OF_TURN
    assert session.id in await done(sf.session_ids())
    assert session.id in [summary.id for summary in await done(sf.sessions())]
    assert await done(session.cancel()) is False


async def test_real_appends_of_every_kind(sf: Any) -> None:
    session = await done(sf.session())
    await done(session.append("Once "))
    assert (await done(session.append(span=[104, 105]))).span == [104, 105]
    await done(session.system("s"))
    await done(session.user("u"))
    await done(session.assistant("a"))
    block = await done(session.block(BlockKind.FILE_DIFF, {"path": "a.txt", "diff": "+x"}, role=Role.USER))
    assert (block.kind, json.loads(block.fields["payload"])["path"]) == ("Block", "a.txt")
    assert block.span
    declared = await done(sf.session())
    assert (await done(declared.declare(tools=[WEATHER]))).span


async def test_real_tool_call_is_answered_and_stands_in_the_ledger(sf: Any) -> None:
    session, call = await calling_session(sf)
    assert await done(session.open_tool_calls()) == [call]
    await done(session.cancel_tool(call))
    (entry,) = await done(session.ledger())
    assert (entry.call, entry.state, entry.is_cancel_requested) == (call, CallState.CANCEL_REQUESTED, True)
    assert entry.state.is_open
    await done(session.tool_result(call, "It rains."))
    (entry,) = await done(session.ledger())
    assert (entry.state, entry.late_effects) == (CallState.SUCCEEDED, 0)
    assert (await done(session.generate(64))).text == "Take an umbrella."


@pytest.mark.parametrize(("method", "state"), [("tool_failed", 3), ("tool_cancelled", 4)])
async def test_real_tool_call_without_a_result_is_ended_and_a_late_one_is_noted(
    sf: Any, method: str, state: int
) -> None:
    session, call = await calling_session(sf)
    outcome = await done(getattr(session, method)(call, "no network"))
    assert outcome.fields["note"] == "no network"
    assert await done(session.open_tool_calls()) == []
    assert (await done(session.ledger()))[0].state == state
    with pytest.raises(RequestRefused, match="has ended"):
        await done(session.tool_result(call, "It rains."))
    assert (await done(session.ledger()))[0].late_effects == 1


async def test_real_permission_holds_the_session_up_until_it_is_answered(sf: Any) -> None:
    session, call = await calling_session(sf)
    asked = await done(session.request_permission("May I?", call))
    assert asked.fields == {"call_id": call.id, "text": "May I?"}
    await done(session.tool_result(call, "It rains."))
    with pytest.raises(PermissionPending, match="permission"):
        await done(session.generate(64))
    answer = await done(session.respond_permission(asked, granted=True))
    assert answer.fields == {"request_id": asked.id, "granted": True}
    assert (await done(session.generate(64))).text == "Take an umbrella."
    await done(session.respond_permission(await done(session.request_permission("And now?")), granted=False))


async def test_real_branches_of_every_kind(sf: Any) -> None:
    session = await done(sf.session(Sampling(seed=1)))
    question = await done(session.user("Name three rivers."))
    await done(session.generate(64))
    fork = await done(session.fork())
    assert (await done(fork.messages())) == (await done(session.messages()))
    after = await done(session.fork_after(question, seed=2))
    assert TreeNode(after.id, session.id, 2) in await done(sf.tree())
    assert (await done(after.inspect())).sampling.seed == 2
    edited = await done(session.edit(question, "Name two."))
    assert [message.text for message in await done(edited.messages())] == ["Name two."]
    rebased = await done(session.rebase([Drop(1, 2)]))
    assert [message.role for message in await done(rebased.messages())] == ["assistant"]
    trimmed = await done(session.trim(2))
    assert [message.role for message in await done(trimmed.messages())] == ["user"]
    child = await done(sf.session(parent=session))
    assert TreeNode(child.id, session.id, 0) in await done(sf.tree())


async def test_real_settings_are_set_and_seen(sf: Any) -> None:
    session = await done(sf.session())
    assert await done(session.set_title("Rivers")) == 1
    assert await done(session.archive()) == 2
    assert session.id not in [summary.id for summary in await done(sf.sessions())]
    archived = {summary.id: summary for summary in await done(sf.sessions(include_archived=True))}[session.id]
    assert (archived.title, archived.archived, archived.meta_version) == ("Rivers", True, 2)
    assert await done(session.set_meta(title="Lakes", archived=False, expected_version=2)) == 3
    with pytest.raises(VersionConflict):
        await done(session.set_meta(title="Seas", expected_version=2))
    await done(session.set_qos(QosClass.BACKGROUND_AGENT, batch_invariant=True))
    deadline = await done(session.pin(60))
    inspection = await done(session.inspect())
    assert (inspection.qos_class, inspection.batch_invariant) == (QosClass.BACKGROUND_AGENT, True)
    assert inspection.pin_deadline_unix_ms == deadline > 0
    assert await done(session.pin(0)) == 0


async def test_real_watch_yields_the_log(sf: Any) -> None:
    session = await done(sf.session())
    await done(session.user("Name three rivers."))
    watch = session.watch()
    seen = [await following(watch) for _ in range(2)]
    watch.close()
    assert seen == await done(session.events())


async def test_real_daemon_answers_about_itself(sf: Any) -> None:
    assert await done(sf.is_healthy())
    await done(sf.wait_until_healthy(5))
    assert "superfluid" in await done(sf.metrics())
    await done(sf.set_log_level("info"))
    assert await done(sf.call("List")) == ("Sessions", {"ids": await done(sf.session_ids())})
    assert await done(sf.ask("List", None, "Sessions"))
    sf.close()
    assert await done(sf.session_ids())


async def test_real_purge_takes_the_forks_along_or_leaves_them(sf: Any) -> None:
    session = await done(sf.session())
    await done(session.user("Name three rivers."))
    fork = await done(session.fork())
    with pytest.raises(VersionConflict):
        await done(session.purge(PurgeMode.CASCADE, expected_generation=1))
    assert await done(session.purge(PurgeMode.REROOT)) == [session.id]
    with pytest.raises(SessionPurged):
        await done(session.user("Hello?"))
    assert [message.text for message in await done(fork.messages())] == ["Name three rivers."]
    below = await done(fork.fork())
    assert sorted(await done(fork.purge(PurgeMode.CASCADE))) == [fork.id, below.id]
    with pytest.raises(SessionPurged):
        await done(sf.get(below.id))


async def test_real_watch_ends_when_the_session_is_purged(sf: Any) -> None:
    session = await done(sf.session())
    watch = session.watch()
    assert (await following(watch)).kind == "Created"
    await done(session.purge(PurgeMode.REROOT))
    assert [event.kind for event in await streamed(watch)] == ["Purged"]


async def test_real_completion_fills_in_and_is_cached(sf: Any) -> None:
    suffix = f"s in {type(sf).__name__}."
    first = await done(sf.complete("Name three river", suffix, max_tokens=4))
    assert len(first.tokens) == 4
    assert first.text
    assert not first.is_cached
    assert not first.is_expired
    again = await done(sf.complete("Name three river", suffix, max_tokens=4))
    assert (again.text, again.is_cached) == (first.text, True)
    assert not (await done(sf.complete("Name three river", suffix, max_tokens=4, suffix_first=True))).is_cached


async def test_real_completions_that_come_too_fast_are_throttled(sf: Any) -> None:
    async def complete_until_throttled() -> float:
        for _ in range(1_000):
            try:
                await done(sf.complete("a", "b", max_tokens=1))
            except Throttled as throttled:
                return throttled.retry_after_seconds
        return 0.0

    assert 0.0 < await complete_until_throttled() < 1.0


async def test_real_background_rate_is_taken(sf: Any) -> None:
    await done(sf.set_background_rate(4))
    await done(sf.set_background_rate(1))


async def test_real_call_with_a_lease_shows_its_deadline(tmp_path: Path) -> None:
    with RealServer(tmp_path, SCRIPT, "--tool-lease-ms", "3600000") as server:
        session, _ = await calling_session(server.sf)
        (entry,) = session.ledger()
        assert entry.lease_deadline_unix_ms is not None
        assert entry.lease_deadline_unix_ms > session.events()[-1].ts_unix_ms


async def test_real_image_is_kept_shown_and_swept_away(sf: Any) -> None:
    png = picture(1)
    session = await done(sf.session())
    kept = await done(sf.put_media(png, "image/png"))
    await done(sf.put_media(picture(2), "image/png"))
    block = await done(session.image(kept, before="What is ", after="?"))
    assert json.loads(block.fields["payload"])["blob"] == kept
    assert len(block.span) > IMAGE_TOKENS
    assert (await done(session.image(png))).kind == "Block"
    await done(session.user("Name three rivers."))
    assert (await done(session.generate(64))).text == "Rhine, Rhône, Po."
    assert await done(sf.gc_media()) == MediaSweep(kept=1, removed=1)
