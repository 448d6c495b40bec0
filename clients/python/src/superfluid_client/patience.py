"""Which refusals pass by themselves, and are waited for. A refused request had no effect, so it may be sent again."""

import time
from collections.abc import Callable

from superfluid_client.errors import ModelLoading, RequestRefused, SessionBusy
from superfluid_client.network import Network

_LOADING_PAUSE_SECONDS = 0.1
_SETTLING_PAUSE_SECONDS = 0.02


class LoadingPatience:
    """Of one request and its repetitions: waits for a model that is still loading."""

    def __init__(self, network: Network, timeout_seconds: float) -> None:
        self._network = network
        self._deadline = time.monotonic() + timeout_seconds

    async def wait_out(self, refused: RequestRefused) -> None:
        """Waits a moment if another try is worth it, else raises the refusal."""
        if not (isinstance(refused, ModelLoading) and time.monotonic() < self._deadline):
            raise refused
        await self._network.sleep(_LOADING_PAUSE_SECONDS)


class SessionPatience(LoadingPatience):
    """Waits as well for a session that is busy with a stream which was hung up on: the daemon is about to notice."""

    def __init__(self, network: Network, timeout_seconds: float, is_settling: Callable[[], bool]) -> None:
        super().__init__(network, timeout_seconds)
        self._is_settling = is_settling

    async def wait_out(self, refused: RequestRefused) -> None:
        if isinstance(refused, SessionBusy) and self._is_settling():
            await self._network.sleep(_SETTLING_PAUSE_SECONDS)
        else:
            await super().wait_out(refused)
