"""A deterministic engine without a model: hashed babble or scripted replies. Runs in the worker, and in tests anywhere.

The next token depends on every token in the lane, so a chunk that is lost, doubled or misplaced changes the reply.
"""

import os
import struct
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from superfluid.domain.image_format import require_image
from superfluid.domain.media import PLACEHOLDER, MediaFacts, runs_of
from superfluid.domain.model import ModelFacts
from superfluid.engine.fake_script import FakeScript, ScriptReader
from superfluid.engine.fake_vocabulary import (
    BYTE_TOKENS,
    END_OF_GENERATION,
    END_OF_TEXT,
    SPECIAL_IDS,
    VOCABULARY_TOKENS,
)
from superfluid.engine.interface import ImageRow, Row, StepResult
from superfluid.engine.lane_state import State
from superfluid.engine.rows import check_cut, check_image_row, check_rows
from superfluid.engine.spare_buffers import SpareBuffers
from superfluid.errors import AdapterRefusedError, EngineFaultError, ModelLoadError, UnsupportedInputError

MICRO_BATCH_TOKENS: Final = 64
BYTES_PER_TOKEN: Final = 12

_MASK = (1 << 64) - 1
_STATE = struct.Struct("<4sIII")
_STATE_MAGIC = b"FAK1"
_LETTERS: Final = np.frombuffer(b"etaoinshrdlu etaoins hrdlcumwfgypbv ", np.uint8).astype(np.int32)
_CRASHING_ADAPTER: Final = b"crash"
_SCRIPTED_LOGIT: Final = 40.0
_FAVOURED_LOGIT: Final = 6.0

_floor = np.full(VOCABULARY_TOKENS, -12.0, np.float32)
_floor[_LETTERS] = 0.0
_TOKEN_SALTS: Final = (np.arange(1, VOCABULARY_TOKENS + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)).astype(
    np.uint64
)


class FakeEngine:
    """``Engine`` over token lists. Raises ModelLoadError if the script says so."""

    def __init__(
        self,
        script: FakeScript | None = None,
        *,
        lanes: int,
        window_tokens: int | None = None,
        threads: int = 1,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._script = script or FakeScript()
        if self._script.load_seconds:
            sleep(self._script.load_seconds)
        if self._script.load_error is not None:
            raise ModelLoadError(self._script.load_error)
        self._window = window_tokens or min(self._script.trained_window_tokens, 8192)
        self._reader = ScriptReader(self._script)
        self._tokens: list[list[int]] = [[] for _ in range(lanes)]
        self._hashes: list[list[int]] = [[] for _ in range(lanes)]
        self._threads = threads
        self._steps = 0
        self._spares = SpareBuffers(0)
        self._adapters: dict[int, int] = {0: 0}
        self._salt = 0
        self._salts = [0] * lanes
        self._abort = threading.Event()
        self._is_closed = False

    @property
    def facts(self) -> ModelFacts:
        lanes = len(self._tokens)
        return ModelFacts(
            architecture="fake",
            description="fake engine",
            vocabulary_tokens=VOCABULARY_TOKENS,
            window_tokens=self._window,
            trained_window_tokens=self._script.trained_window_tokens,
            lanes=lanes,
            kv_bytes=lanes * self._window * BYTES_PER_TOKEN,
            weights_bytes=0,
            parameters=0,
            flash_attention=self._script.flash_attention,
            can_truncate=self._script.can_truncate,
            threads=self._threads,
            engine="fake",
            engine_build="1",
            state_key="fake-1",
            sampling_defaults=self._script.sampling_defaults,
            media=MediaFacts(encoder="fake", fingerprint="0" * 16, placeholder_token=SPECIAL_IDS[END_OF_TEXT])
            if self._script.image_tokens
            else None,
        )

    @property
    def end_of_generation(self) -> frozenset[int]:
        return END_OF_GENERATION

    @property
    def unpenalized(self) -> frozenset[int]:
        return frozenset(range(BYTE_TOKENS, VOCABULARY_TOKENS))

    def length(self, lane: int) -> int:
        return len(self._tokens[lane])

    def step(self, rows: Sequence[Row]) -> StepResult:
        check_rows(rows, [len(tokens) for tokens in self._tokens], self._window)
        self._steps += 1
        self._misbehave(rows)
        completed = self._spend_time([len(row.tokens) for row in rows])
        logits: list[NDArray[np.float32]] = []
        for row, count in zip(rows, completed, strict=True):
            first = 0 if row.wants_logits == "all" else len(row.tokens) - 1
            for index, token in enumerate(row.tokens[:count].tolist()):
                self._append(row.lane, token)
                if count == len(row.tokens) and index >= first and row.wants_logits != "none":
                    logits.append(self._logits(row.lane))
        stacked = np.stack(logits) if logits else np.empty((0, VOCABULARY_TOKENS), np.float32)
        return StepResult(stacked, completed)

    def image_layout(self, content: bytes) -> Sequence[int]:
        """Two runs of places in brackets."""
        count = self._script.image_tokens
        if count == 0:
            raise UnsupportedInputError(self.facts.no_images_reason)
        require_image(content)
        half = count // 2
        return [*b"<", *[PLACEHOLDER] * (count - half), *b"|", *[PLACEHOLDER] * half, *b">"]

    def step_image(self, row: ImageRow, content: bytes) -> StepResult:
        check_image_row(row, [len(tokens) for tokens in self._tokens], self._window)
        self._steps += 1
        lengths = [length for _, length in runs_of(self.image_layout(content), PLACEHOLDER)]
        if row.run >= len(lengths) or lengths[row.run] != row.length:
            self.clear(row.lane)
            raise EngineFaultError("the image has another layout here")
        self._abort.clear()
        if self._is_interrupted(self._script.step_seconds + self._script.token_seconds * row.length):
            return StepResult(np.empty((0, VOCABULARY_TOKENS), np.float32), (0,))
        seen = zlib.crc32(content)
        for index in range(row.length):
            self._append(row.lane, -2 - (_mix(seen + (row.run << 40) + (index << 48)) >> 34))
        logits = [self._logits(row.lane)] if row.wants_logits != "none" else []
        stacked = np.stack(logits) if logits else np.empty((0, VOCABULARY_TOKENS), np.float32)
        return StepResult(stacked, (row.length,))

    def truncate(self, lane: int, length: int) -> bool:
        held = len(self._tokens[lane])
        check_cut(lane, length, held)
        is_possible = self._script.can_truncate or length in (0, held)
        del self._tokens[lane][length if is_possible else 0 :]
        del self._hashes[lane][length if is_possible else 0 :]
        return is_possible

    def clear(self, lane: int) -> None:
        self._tokens[lane].clear()
        self._hashes[lane].clear()

    def scrub(self, lane: int) -> None:
        self.clear(lane)

    def export_lane(self, lane: int) -> State:
        body = np.array(self._tokens[lane], np.dtype("<i4")).tobytes()
        return _STATE.pack(_STATE_MAGIC, len(self._tokens[lane]), zlib.crc32(body), self._salts[lane]) + body

    def import_lane(self, lane: int, state: State, length: int) -> bool:
        self.clear(lane)
        state = bytes(state)
        if len(state) != _STATE.size + 4 * length or length > self._window:
            return False
        magic, held, checksum, salt = _STATE.unpack_from(state)
        body = state[_STATE.size :]
        if magic != _STATE_MAGIC or held != length or checksum != zlib.crc32(body):
            return False
        for token in np.frombuffer(body, np.dtype("<i4")).tolist():
            self._append(lane, token, salt)
        return True

    @property
    def spare_memory(self) -> SpareBuffers:
        """Never used."""
        return self._spares

    def load_adapter(self, adapter: int, path: Path) -> None:
        """Any file that begins as a GGUF does; what is in it changes every reply."""
        assert adapter > 0
        assert adapter not in self._adapters
        try:
            content = path.read_bytes()
        except OSError as error:
            raise AdapterRefusedError(f"{path} cannot be read: {error.strerror}") from error
        if _CRASHING_ADAPTER in content:
            _crash(None)
        if not content.startswith(b"GGUF"):
            raise AdapterRefusedError(f"{path} is no GGUF file")
        self._adapters[adapter] = zlib.crc32(content)

    def free_adapter(self, adapter: int) -> None:
        self._adapters.pop(adapter, None)

    def use_adapter(self, adapter: int) -> None:
        self._salt = self._adapters[adapter]

    def set_threads(self, threads: int) -> None:
        self._threads = threads

    def abort(self) -> None:
        self._abort.set()

    def resume(self) -> None:
        self._abort.clear()

    def close(self) -> None:
        self._is_closed = True

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def _append(self, lane: int, token: int, salt: int | None = None) -> None:
        hashes = self._hashes[lane]
        salt = self._salt if salt is None else salt
        self._salts[lane] = salt
        hashes.append(_mix((hashes[-1] if hashes else 0) ^ (token + 1) ^ (salt << 32)))
        self._tokens[lane].append(token)

    def _logits(self, lane: int) -> NDArray[np.float32]:
        state = self._hashes[lane][-1]
        noise = (_TOKEN_SALTS ^ np.uint64(state)) * np.uint64(0xBF58476D1CE4E5B9)
        logits = _floor + (noise >> np.uint64(40)).astype(np.float32) * np.float32(4.0 / (1 << 24))
        scripted = self._reader.next_token(self._tokens[lane])
        if scripted is None:
            logits[_LETTERS[state % len(_LETTERS)]] = _FAVOURED_LOGIT
        else:
            logits[scripted] = _SCRIPTED_LOGIT
        return logits

    def _spend_time(self, counts: list[int]) -> tuple[int, ...]:
        """Waits as long as the step takes; returns the tokens completed per row (whole micro-batches if aborted)."""
        total = sum(counts)
        done = 0
        if not self._is_interrupted(self._script.step_seconds):
            while done < total:
                micro_batch = min(MICRO_BATCH_TOKENS, total - done)
                if self._is_interrupted(self._script.token_seconds * micro_batch):
                    break
                done += micro_batch
        completed: list[int] = []
        for count in counts:
            completed.append(min(count, done))
            done -= completed[-1]
        return tuple(completed)

    def _is_interrupted(self, seconds: float) -> bool:
        return self._abort.wait(seconds) if seconds > 0 else self._abort.is_set()

    def _misbehave(self, rows: Sequence[Row]) -> None:
        script = self._script
        has_token = script.crash_token is not None and any(script.crash_token in row.tokens for row in rows)
        if has_token or self._steps == script.crash_step:
            _crash(script.crash_marker)
        is_foreign = any((row.tokens < 0).any() or (row.tokens >= VOCABULARY_TOKENS).any() for row in rows)
        if is_foreign or self._steps in script.fault_steps:
            for row in rows:
                self.clear(row.lane)
            cause = "a token is not in the vocabulary" if is_foreign else "its script says so"
            raise EngineFaultError(f"the fake engine fails step {self._steps}: {cause}")


def _crash(marker: str | None) -> None:
    if marker is not None:
        if Path(marker).exists():
            return
        Path(marker).touch()
    os.abort()


def _mix(value: int) -> int:
    """The finalizer of SplitMix64."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
