"""An advisory lock on a file, so that two programs do not fetch the same model at once. In the daemon."""

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def exclusive_lock(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Holds ``flock`` on ``path``; calls ``on_wait`` once if somebody else holds it, then waits without limit.

    The system lets go of it when the holder dies, so a crashed fetch blocks nobody. The hub's own client locks the same
    way, which is why its lock files can be shared with it. The file stays behind: removing it would race.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
