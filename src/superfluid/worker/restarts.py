"""When a lost worker is replaced at once, and when something has to happen first. On the daemon's event loop."""

import asyncio
from typing import Final

from superfluid.clock import Clock

MAX_FAILURES: Final = 3
RETRY_SECONDS: Final = 10.0
UNASKED_RETRY_SECONDS: Final = 60.0


class RestartPolicy:
    """Counts failures in a row. After three without progress the worker is given up, until there is a reason to try
    again: a job submitted after ten seconds, or a minute, since somebody who asks for readiness first never submits.
    """

    def __init__(self, clock: Clock) -> None:
        self.failures = 0
        self.respawns = 0
        self._clock = clock
        self._gave_up_at: float | None = None
        self._wake = asyncio.Event()
        self._is_stopped = False

    @property
    def is_given_up(self) -> bool:
        return self._gave_up_at is not None

    def failed(self) -> bool:
        """A worker was lost. Whether another is to be tried at once."""
        self.failures += 1
        return self.failures < MAX_FAILURES

    def progressed(self) -> None:
        """The worker did something."""
        self.failures = 0

    def loaded(self) -> None:
        """A worker is there again."""
        self._gave_up_at = None

    def give_up(self) -> None:
        self._gave_up_at = self._clock.monotonic()

    def job_refused(self) -> None:
        """A job came while the worker was given up."""
        assert self._gave_up_at is not None
        if self._clock.monotonic() - self._gave_up_at >= RETRY_SECONDS:
            self._wake.set()

    def stop(self) -> None:
        """Nothing is waited for any more."""
        self._is_stopped = True
        self._wake.set()

    async def wait_for_reason(self) -> bool:
        """False if a minute has passed without one."""
        if self._is_stopped:
            return True
        self._wake.clear()
        try:
            await asyncio.wait_for(self._wake.wait(), UNASKED_RETRY_SECONDS)
        except TimeoutError:
            return False
        return True
