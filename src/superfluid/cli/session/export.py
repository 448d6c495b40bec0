"""What ``superfluid session export`` does: a session as JSON lines or as a trace, to stdout, a file, a collector."""

import json
import os
import re
from pathlib import Path

import click
from msgspec import Struct

from superfluid.cli.commands import say_note
from superfluid.cli.session.otlp_trace import SessionTrace
from superfluid.cli.session.records import exported_event
from superfluid.cli.socket_flag import connect
from superfluid.errors import EnvironmentFaultError, UsageError
from superfluid.native import requests, responses
from superfluid.native.responses import Inspection
from superfluid.version import __version__

PUSH_SECONDS = 10.0
_TRACES_PATH = "/v1/traces"


class ExportSettings(Struct, frozen=True, kw_only=True):
    """The flags. ``has_content``: text in the place of byte counts; ``may_send_content``: it may go to a collector."""

    format: str = "jsonl"
    directory: Path | None = None
    has_content: bool = False
    model: str = ""
    endpoint: str | None = None
    may_send_content: bool = False


def export_session(session: int, settings: ExportSettings, socket_path: Path | None) -> None:
    """Raises EnvironmentFaultError if the file cannot be written or the collector does not take the trace."""
    url = None if settings.endpoint is None else traces_url(settings.endpoint)
    with connect(socket_path) as client:
        inspection = client.ask(requests.Inspect(session), responses.Inspected).inspection
    if inspection.store_id is None and (settings.format == "otlp-jsonl" or url is not None):
        say_note("the server names no store id: the trace's ids may be those of another store's session as well")
    _write(exported_text(inspection, settings), session, settings)
    if url is not None:
        _push(url, trace_text(inspection, settings, has_content=_sends_content(settings)))


def exported_text(inspection: Inspection, settings: ExportSettings) -> str:
    """What goes to the file. Pure."""
    if settings.format == "otlp-jsonl":
        return trace_text(inspection, settings, has_content=settings.has_content) + "\n"
    session = inspection.summary.id
    lines = (exported_event(session, event, has_content=settings.has_content) for event in inspection.events)
    return "".join(f"{_compact(line)}\n" for line in lines)


def trace_text(inspection: Inspection, settings: ExportSettings, *, has_content: bool) -> str:
    """One trace request. ``has_content`` is only a note in it. Pure."""
    trace = SessionTrace(inspection.summary.id, inspection.events, store_id=inspection.store_id, model=settings.model)
    return _compact(trace.request(scope_version=__version__, has_content=has_content))


def traces_url(endpoint: str) -> str:
    """The address that takes traces. Raises UsageError if ``endpoint`` is no http address."""
    base = endpoint.rstrip("/")
    if not base.startswith(("http://", "https://")) or len(base) <= len("https://"):
        raise UsageError(f"--endpoint must be an http:// or https:// address, got {endpoint!r}", param="--endpoint")
    return base if base.endswith(_TRACES_PATH) else base + _TRACES_PATH


def _sends_content(settings: ExportSettings) -> bool:
    if settings.has_content and not settings.may_send_content:
        say_note("--endpoint sends no content without --allow-content-egress: the trace goes out without it")
        return False
    return settings.has_content


def _write(text: str, session: int, settings: ExportSettings) -> None:
    if settings.directory is None:
        click.echo(text.encode(errors="replace"), nl=False)
        return
    ending = "traces.otlp.jsonl" if settings.format == "otlp-jsonl" else "jsonl"
    path = settings.directory.expanduser() / f"session-{session}.{ending}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            # A file that was there keeps its mode otherwise.
            os.fchmod(descriptor, 0o600)
            file.write(text.encode(errors="replace"))
    except OSError as error:
        raise EnvironmentFaultError(f"cannot write {path}: {error.strerror}") from error
    say_note(f"wrote {path}")


def _push(url: str, body: str) -> None:
    import httpx

    try:
        answer = httpx.post(
            url, content=body.encode(), headers={"content-type": "application/json"}, timeout=PUSH_SECONDS
        )
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = re.sub(r"^\[Errno -?\d+\] ", "", str(error))
        raise EnvironmentFaultError(f"cannot send the trace to {url}: {reason}") from error
    if not answer.is_success:
        raise EnvironmentFaultError(f"{url} answered {answer.status_code}")
    say_note(f"{url} answered {answer.status_code}")


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
