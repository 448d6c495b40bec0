"""The engine contract: lanes of KV state, a step over them, and whole-lane export and import. Runs in the worker.

Implemented by ``engine/llama.py`` (llama.cpp) and ``engine/fake.py``; ``tests/contract`` holds both to this text.
An engine belongs to one thread. Lanes are numbered 0 to ``facts.lanes`` - 1 and hold at most ``window_tokens`` tokens.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from superfluid.domain.model import ModelFacts
from superfluid.engine.lane_state import State
from superfluid.engine.spare_buffers import SpareBuffers

Logits = NDArray[np.float32]
Tokens = NDArray[np.int32]


class Row(NamedTuple):
    """Tokens to evaluate on one lane, from ``position`` on, which must be the lane's length.

    ``wants_logits`` asks for the logits behind the last token only (``"last"``), behind each (``"all"``), or none.
    """

    lane: int
    position: int
    tokens: Tokens
    wants_logits: str = "last"


class ImageRow(NamedTuple):
    """A run of an image's embeddings to evaluate on one lane, from ``position`` on, which must be the lane's length.

    ``blob`` is the image's SHA-256 in hex, ``run`` counts the runs in its layout from 0, ``length`` is how many tokens
    that one is taken to have. ``wants_logits`` is ``"last"`` or ``"none"``.
    """

    lane: int
    position: int
    length: int
    blob: str
    run: int
    wants_logits: str = "none"


class StepResult(NamedTuple):
    """``logits``: float32, one row of vocabulary size per requested position, in the order of the rows. It is a view of
    the engine's memory, valid until the next call. ``completed``: tokens evaluated per row; fewer than asked for only
    after an abort, and then that row has no logits (its rows are absent)."""

    logits: Logits
    completed: tuple[int, ...]


class Engine(Protocol):
    """One loaded model."""

    @property
    def facts(self) -> ModelFacts: ...

    @property
    def end_of_generation(self) -> frozenset[int]:
        """Tokens that end a turn."""
        ...

    @property
    def unpenalized(self) -> frozenset[int]:
        """Special and end tokens, which penalties spare."""
        ...

    def length(self, lane: int) -> int:
        """Tokens the lane holds."""
        ...

    def step(self, rows: Sequence[Row]) -> StepResult:
        """Evaluates the rows in one call of the model; rows are in ascending lane order, each lane at most once.

        Blocks. Raises EngineFaultError if the engine refuses; the named lanes are then cleared.
        """
        ...

    def image_layout(self, content: bytes) -> Sequence[int]:
        """The tokens that stand for an image in the input, ``PLACEHOLDER`` where its embeddings go. Blocks.

        Raises InvalidValueError if it is no image that the model can see, UnsupportedInputError if that sees none.
        """
        ...

    def step_image(self, row: ImageRow, content: bytes) -> StepResult:
        """Encodes the image, whose file's ``content`` that is, and evaluates one run of it: all, or nothing after an
        abort. Blocks.

        Raises EngineFaultError, and the lane is cleared, also if the run has another length by now.
        """
        ...

    def truncate(self, lane: int, length: int) -> bool:
        """Cuts the lane to its first ``length`` tokens. False (and the lane is cleared) if the state cannot be cut."""
        ...

    def clear(self, lane: int) -> None:
        """Empties the lane."""
        ...

    def scrub(self, lane: int) -> None:
        """Empties a lane that holds what is no number, so that nothing of it has a part in what comes. Takes time."""
        ...

    def export_lane(self, lane: int) -> State:
        """The whole state of the lane, importable into any lane of any engine with an equal ``facts.state_key``."""
        ...

    def import_lane(self, lane: int, state: State, length: int) -> bool:
        """Replaces the lane's state by an exported one of ``length`` tokens. False (and the lane cleared) if refused.

        Never trust a state of unknown origin: a flipped bit in its body is taken. Keep a checksum beside it.
        """
        ...

    @property
    def spare_memory(self) -> SpareBuffers:
        """The memory for exported states that is kept for those to come."""
        ...

    def load_adapter(self, adapter: int, path: Path) -> None:
        """Loads a LoRA adapter under a number above 0 that was never used before, and tries it out. Blocks.

        Raises AdapterRefusedError; the lanes are as they were.
        """
        ...

    def free_adapter(self, adapter: int) -> None:
        """Frees a loaded adapter. Not the one in use."""
        ...

    def use_adapter(self, adapter: int) -> None:
        """From the next step on every row is evaluated with that adapter; 0, at first, is the model alone.

        What a lane holds is of use only to rows with the adapter that it was computed with.
        """
        ...

    def set_threads(self, threads: int) -> None:
        """Takes effect with the next step."""
        ...

    def abort(self) -> None:
        """Asks steps to end early, the one in flight or else the next, until ``resume``. May be called from another
        thread; without effect on models whose state an abort would corrupt."""
        ...

    def resume(self) -> None:
        """Takes an ``abort`` back."""
        ...

    def close(self) -> None:
        """Frees everything. Idempotent."""
        ...
