"""Opens the KV files that the settings ask for, under the key of the model that was loaded. Runs in the worker."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from superfluid.clock import SystemClock
from superfluid.domain.job import ParkKind
from superfluid.domain.model import ModelFacts
from superfluid.engine.lane_state import ROOM_BYTES
from superfluid.engine.model_file import model_files
from superfluid.kvfiles.format import KvKey
from superfluid.kvfiles.model_digest import files_digest
from superfluid.kvfiles.service import KvEvent, KvFiles
from superfluid.worker.settings import EngineSettings, KvFileSettings

OPEN_SECONDS: Final = 2.0
"""How long the start waits for the directory, so that the first requests find what is there. A model that is new here
is read through once, which may take longer: nothing waits for that, and nothing of it is on the disk anyway."""


def open_kv_files(settings: EngineSettings, facts: ModelFacts, post: Callable[[KvEvent], None]) -> KvFiles | None:
    """``None`` if none are wanted. What comes of the opening is posted."""
    wanted = settings.kv_files
    budgets = _budgets(wanted)
    if wanted is None or not budgets:
        return None

    def key(directory: Path) -> KvKey:
        files = [] if settings.engine == "fake" else model_files(Path(settings.model))
        return KvKey(files_digest(files, directory), facts.state_key)

    files = KvFiles(
        Path(wanted.directory),
        budgets,
        key,
        post,
        clock=SystemClock(),
        thread_seconds=time.thread_time,
        room_bytes=ROOM_BYTES,
    )
    files.start()
    files.wait_opened(OPEN_SECONDS)
    return files


def kept_kinds(settings: KvFileSettings | None) -> frozenset[ParkKind]:
    """What is written at all."""
    return frozenset(_budgets(settings))


def _budgets(settings: KvFileSettings | None) -> Mapping[ParkKind, int | None]:
    if settings is None:
        return {}
    budgets = {ParkKind.SESSION: settings.park_bytes, ParkKind.REQUEST: settings.request_bytes}
    return {kind: budget for kind, budget in budgets.items() if budget != 0}
