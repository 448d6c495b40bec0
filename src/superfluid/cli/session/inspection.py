"""What ``superfluid session inspect`` does: one session in full, as lines or as JSON. The formatting is pure."""

import json
from collections.abc import Iterator
from pathlib import Path

import click

from superfluid.cli.printable import one_line
from superfluid.cli.session.warmth import fetch_warmths, warmth_line, warmth_plain
from superfluid.cli.socket_flag import connect, print_json
from superfluid.domain.events import Event
from superfluid.domain.request import QosClass
from superfluid.native import requests, responses
from superfluid.native.json_codec import JsonCodec
from superfluid.native.responses import Inspection, Parked, ParkEncoding, Tier, Warmth
from superfluid.native.schema import describe


def inspect_session(session: int, *, is_json: bool, socket_path: Path | None) -> None:
    with connect(socket_path) as client:
        inspection = client.ask(requests.Inspect(session), responses.Inspected).inspection
        (warmth,) = fetch_warmths(client, [session])
    if is_json:
        plain = JsonCodec[Inspection](describe(Inspection)).to_plain(inspection)
        print_json({**plain, "warmth": warmth_plain(warmth)})
    else:
        click.echo("\n".join(inspection_lines(inspection, warmth)))


def inspection_lines(inspection: Inspection, warmth: Warmth | None = None) -> Iterator[str]:
    """A few lines of ``key=value``, then one an open call and one a record."""
    summary = inspection.summary
    parent = "-" if summary.parent is None else summary.parent
    title = "-" if summary.title is None else json.dumps(one_line(summary.title), ensure_ascii=False)
    yield (
        f"session={summary.id} parent={parent} fork_at={summary.fork_at} title={title} "
        f"archived={_word(summary.archived)}"
    )
    yield (
        f"epoch={inspection.epoch} generation={summary.generation} meta_version={summary.meta_version} "
        f"qos={qos_name(inspection.qos_class)} batch_invariant={_word(inspection.batch_invariant)}"
    )
    yield (
        f"tier={tier_text(inspection.tier)} tokens={summary.tokens} events={summary.events} "
        f"last_finish={inspection.last_finish} wal_v{inspection.wal_version}"
    )
    if warmth is not None:
        yield warmth_line(warmth)
    if inspection.behavior_fingerprint is not None:
        yield f"behavior_fingerprint={inspection.behavior_fingerprint:016x}"
    if inspection.store_id is not None:
        yield f"store_id={inspection.store_id.hex()}"
    for call_id, name, arguments in inspection.open_tool_calls:
        yield f"open call {call_id}: {one_line(name)} {one_line(arguments)}"
    yield from map(_event_line, inspection.events)


def tier_text(tier: Tier) -> str:
    """Where a session's computed state is, in a word; a parked one with how many tokens that covers."""
    match tier:
        case responses.Resident():
            return "resident"
        case Parked(covered, encoding):
            known = {each.value: each.name.lower() for each in ParkEncoding}
            return f"parked({covered},{known.get(encoding, encoding)})"
        case responses.Cold():
            return "cold"


def qos_name(qos_class: int) -> str:
    return QosClass(qos_class).name.lower() if qos_class in list(QosClass) else str(qos_class)


def _event_line(event: Event) -> str:
    name = type(event.body).__name__
    return f"  #{event.event_id:<5} epoch {event.epoch:<3} ts {event.ts_unix_ms:<14} {name}"


def _word(is_so: bool) -> str:
    return "yes" if is_so else "no"
