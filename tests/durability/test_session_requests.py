"""Tool calls, permissions, settings and blocks as clients meet them: both transports, and a daemon that is killed."""

import json
import re
from pathlib import Path

import pytest
from openai import BadRequestError, OpenAI, RateLimitError
from tests.fixtures.live_daemon import Calls, LiveDaemon, RefusedError
from tests.fixtures.tiny_gguf import write_tiny_model

from superfluid.domain.events import Generated, PermissionRequest, ToolUse
from superfluid.domain.reply import Finish
from superfluid.domain.state import CallState
from superfluid.native import requests, responses

GAP = requests.Complete("def ", "return 1", 0, 12)
CALL = '<tool_call>{"name":"f","arguments":{"a":1}}</tool_call>'


def committed(client: Calls, request: requests.Request) -> int:
    """The id of the event that the request commits."""
    reply = client.ask(request)
    assert isinstance(reply, responses.Committed)
    return reply.event.event_id


def ledger_of(client: Calls, session: int) -> tuple[tuple[int, responses.LedgerEntry], ...]:
    reply = client.ask(requests.Ledger(session))
    assert isinstance(reply, responses.Ledger)
    return reply.entries


def test_calls_permissions_and_settings_are_as_they_were_behind_a_killed_daemon(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"replies": [{"text": CALL}]}))
    with LiveDaemon(tmp_path, script, "--tool-lease-ms", "600000") as daemon:
        with daemon.client() as client:
            session = client.create()
            client.append(session, "hi")
            (call_id,) = [e.event_id for e in client.stream(session, 200) if isinstance(e.body, ToolUse)]
        web = daemon.web_client()
        assert web.ask(requests.SetMeta(session, 0, "née", archived=True)) == responses.Meta(1)
        committed(web, requests.SetQos(session, 3, batch_invariant=False))
        pinned = web.ask(requests.Pin(session, 60_000))
        committed(web, requests.RequestToolCancel(session, call_id))
        committed(web, requests.AppendBlock(session, 1, 6, '{"path":"a.py"}'))
        asked = committed(web, requests.RequestPermission(session, call_id, "ok?"))
        before = ledger_of(web, session)
        called = web.read(session)[call_id]
        deadline = before[0][1].lease_deadline_unix_ms
        assert deadline is not None
        assert abs(deadline - called.ts_unix_ms - 600_000) < 1000
        entry = responses.LedgerEntry("f", '{"a":1}', CallState.CANCEL_REQUESTED, True, deadline, 0)
        assert before == ((call_id, entry),)
        assert web.ask(requests.SetBackgroundRate(0)) == responses.Ack()

        daemon.kill()
        daemon.start()
        with daemon.client() as client:
            assert ledger_of(client, session) == before
            inspection = client.inspect(session)
            assert (inspection.summary.title, inspection.summary.archived, inspection.qos_class) == ("née", True, 3)
            assert pinned == responses.Pinned(inspection.pin_deadline_unix_ms)
            assert inspection.events[asked].body == PermissionRequest(call_id, "ok?")
            with pytest.raises(RefusedError, match="permission"):
                list(client.stream(session, 1))
            committed(client, requests.RespondPermission(session, asked, granted=False))
            committed(client, requests.AppendToolOutcome(session, call_id, 2, "stopped"))
            assert [entry.state for _, entry in ledger_of(client, session)] == [CallState.CANCELLED]
            assert list(client.stream(session, 1))


def test_completions_of_a_real_model_over_every_transport(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny.gguf")
    options = ("--completion-rate", "0.001", "--completion-burst", "3", "--flash-attn", "off", "--threads", "1")
    with LiveDaemon(tmp_path, model, *options) as daemon, daemon.client() as client:
        first = client.ask(GAP)
        assert isinstance(first, responses.Completion)
        assert first.text
        assert (len(first.tokens), first.cached, first.expired) == (12, False, False)
        web = daemon.web_client()
        assert web.ask(GAP) == responses.Completion(first.text, first.tokens, cached=True, expired=False)
        suffix_first = client.ask(requests.Complete("def ", "return 1", 1, 12))
        assert isinstance(suffix_first, responses.Completion)
        assert suffix_first.tokens != first.tokens
        long = client.ask(requests.Complete("x = 1\n" * 50_000, "y = 2\n" * 50_000, 0, 4))
        assert isinstance(long, responses.Completion)
        assert len(long.tokens) <= 4
        throttled = client.ask(GAP)
        assert isinstance(throttled, responses.Throttled)
        assert 900_000 < throttled.retry_after_ms <= 1_000_000
        assert client.list_ids() == ()
        page = client.ask(requests.Metrics())
        assert isinstance(page, responses.Text)
        counted = dict(line.rsplit(" ", 1) for line in page.text.splitlines() if "fim_completions_total{" in line)
        names = ("generated", "cached", "expired", "throttled")
        assert [counted[f'superfluid_fim_completions_total{{result="{name}"}}'] for name in names] == [
            "3",
            "1",
            "0",
            "1",
        ]


def test_completions_over_http_are_those_of_the_session_api(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny.gguf")
    options = ("--completion-rate", "0.01", "--completion-burst", "2", "--flash-attn", "off", "--threads", "1")
    with LiveDaemon(tmp_path, model, *options) as daemon:
        with daemon.client() as client:
            native = client.ask(GAP)
        assert isinstance(native, responses.Completion)
        port = re.search(r"listening on http://127\.0\.0\.1:(\d+)", daemon.log)
        assert port is not None
        api = OpenAI(base_url=f"http://127.0.0.1:{port[1]}/v1", api_key="x", max_retries=0)
        name = api.models.list().data[0].id
        answer = api.completions.create(model=name, prompt="def ", suffix="return 1", max_tokens=12, temperature=0)
        assert answer.choices[0].text == native.text
        assert (answer.model_extra or {})["superfluid"] == {"cached": True, "expired": False, "served_by": name}
        chunks = list(
            api.completions.create(
                model=name, prompt="def ", suffix="return 2", max_tokens=12, temperature=0, stream=True
            )
        )
        assert (chunks[-1].model_extra or {})["superfluid"]["cached"] is False
        with pytest.raises(BadRequestError, match="fim_mode"):
            api.completions.create(model=name, prompt="a", suffix="b", extra_body={"fim_mode": "x"})
        with pytest.raises(RateLimitError) as refused:
            api.completions.create(model=name, prompt="def ", suffix="return 1", max_tokens=12, temperature=0)
        assert 90 < int(refused.value.response.headers["retry-after"]) <= 100
        assert daemon.log.count("POST /v1/completions (fim)") >= 2


def test_completion_past_the_deadline_is_expired_on_a_model_that_is_busy(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"step_seconds": 0.01}))
    options = ("--max-batch", "1", "--completion-deadline-ms", "1500")
    with LiveDaemon(tmp_path, script, *options) as daemon, daemon.client() as busy, daemon.client() as client:
        session = busy.create()
        busy.append(session, "hi")
        stream = busy.stream(session, 100_000)
        next(stream)
        expired = responses.Completion("", (), cached=False, expired=True)
        # Four seconds of steps.
        assert client.ask(requests.Complete("def ", "return 1", 0, 400)) == expired
        client.ask(requests.Cancel(session))
        assert list(stream)[-1].body.finish == 4  # type: ignore[union-attr]
        done = client.ask(requests.Complete("def ", "return 1", 0, 1))
        assert isinstance(done, responses.Completion)
        assert (len(done.tokens), done.expired) == (1, False)


def test_queued_generation_is_cancelled_at_once_while_the_lane_goes_on(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"step_seconds": 0.01}))
    with LiveDaemon(tmp_path, script, "--max-batch", "1") as daemon, daemon.client() as running:
        first, second = running.create(), running.create()
        running.append(first, "go on and on")
        running.append(second, "wait")
        stream = running.stream(first, 100_000)
        next(stream)
        with daemon.client() as queued, daemon.client() as canceller:
            queued.send(requests.Generate(second, 100))
            # Refused until it is in the queue.
            while canceller.call(requests.Cancel(second)) != responses.Cancelling():
                pass
            last = Generated((), "", 0, Finish.CANCELLED)
            delta, summary = queued.receive(), queued.receive()
            assert isinstance(delta, responses.Delta)
            assert delta.event.body == last
            assert summary == responses.Generated((delta.event,), 0, Finish.CANCELLED, 0)
            # The lane was never free: the first one is still at it.
            assert isinstance(next(stream).body, Generated)
            canceller.ask(requests.Cancel(first))
            *_, end = stream
        assert end.body == last


def test_log_level_that_does_not_parse_is_refused_with_the_reason_and_the_old_one_stays(tmp_path: Path) -> None:
    with LiveDaemon(tmp_path) as daemon, daemon.client() as client:
        for calls in (client, daemon.web_client()):
            with pytest.raises(RefusedError, match=r"^'fo==' is not a log filter directive$"):
                calls.ask(requests.SetLogLevel("in,fo=="))
            assert calls.ask(requests.SetLogLevel("debug")) == responses.Ack()
