"""Tool calls, permissions, settings and blocks as clients meet them: both transports, and a daemon that is killed."""

import json
from pathlib import Path

import pytest
from tests.fixtures.live_daemon import Calls, LiveDaemon, RefusedError

from superfluid.domain.events import PermissionRequest, ToolUse
from superfluid.domain.state import CallState
from superfluid.native import requests, responses

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
