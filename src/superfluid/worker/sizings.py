"""The daemon's questions how many tokens an image takes, and who waits for the worker's answers. On its event loop."""

import array
import asyncio
import itertools

from superfluid.errors import (
    EngineFaultError,
    InvalidValueError,
    SuperfluidError,
    UnsupportedInputError,
)
from superfluid.worker.protocol import ImageSized, SizeImage

_LEAVES: dict[str, type[SuperfluidError]] = {
    leaf.code: leaf for leaf in (InvalidValueError, UnsupportedInputError, EngineFaultError)
}


class ImageSizings:
    """Questions without an answer yet."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[list[int]]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def ask(self, blob: str) -> "tuple[SizeImage, asyncio.Future[list[int]]]":
        """The message to send, and where the layout will be, or the error."""
        request = SizeImage(next(self._ids), blob)
        future = self._waiting[request.request_id] = asyncio.get_running_loop().create_future()
        return request, future

    def answered(self, answer: ImageSized) -> None:
        """Answers that nobody waits for are ignored."""
        future = self._waiting.pop(answer.request_id, None)
        if future is None or future.done():
            return
        if answer.code:
            future.set_exception(_LEAVES.get(answer.code, EngineFaultError)(answer.message))
        else:
            future.set_result(array.array("i", answer.layout).tolist())

    def fail_all(self, error: SuperfluidError) -> None:
        """The worker is gone. Nobody asks again: the image may be what ended it."""
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(error)
