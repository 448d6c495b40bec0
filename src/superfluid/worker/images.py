"""The images that jobs refer to: read from the pool that the daemon keeps, and sized for it. Runs in the worker."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from superfluid.engine.interface import Engine, ImageRow, StepResult
from superfluid.errors import EngineFaultError, SuperfluidError
from superfluid.worker.protocol import ImageSized, ImageStep, SizeImage


class WorkerImages:
    """``directory`` is the pool, ``None`` if the daemon keeps none. Remembers the image that was read last."""

    def __init__(
        self, engine: Engine, directory: str | None, announce: Callable[[ImageStep], None] = lambda _: None
    ) -> None:
        """``announce`` is told when a tick begins to work on an image."""
        self._engine = engine
        self._announce = announce
        self._directory = None if directory is None else Path(directory)
        self._last: tuple[str, bytes] = ("", b"")

    def step(self, row: ImageRow) -> StepResult:
        """Evaluates the row, whose content is filled in here. Raises EngineFaultError, and the lane is cleared."""
        try:
            content = self.content(row.blob)
        except EngineFaultError:
            self._engine.clear(row.lane)
            raise
        self._announce(ImageStep())
        return self._engine.step_image(row, content)

    def content(self, blob: str) -> bytes:
        """Raises EngineFaultError if it is not there, or not what it was."""
        if self._last[0] != blob:
            self._last = (blob, self._read(blob))
        return self._last[1]

    def size(self, request: SizeImage) -> ImageSized:
        """Never raises: why an image cannot be shown is part of the answer."""
        try:
            layout = self._engine.image_layout(self.content(request.blob))
        except SuperfluidError as error:
            return ImageSized(request.request_id, b"", error.code, error.message)
        return ImageSized(request.request_id, np.asarray(layout, "<i4").tobytes())

    def _read(self, blob: str) -> bytes:
        if self._directory is None:
            raise EngineFaultError("the server keeps no media")
        try:
            content = (self._directory / blob).read_bytes()
        except FileNotFoundError:
            raise EngineFaultError("an image of this session is not in the media pool any more") from None
        except OSError as error:
            raise EngineFaultError(f"an image cannot be read: {error.strerror}") from error
        if hashlib.sha256(content).hexdigest() != blob:
            raise EngineFaultError("an image in the media pool is damaged: put it there again")
        return content
