import threading

import pytest

from superfluid.worker.inbox import Inbox
from superfluid.worker.protocol import Stop


@pytest.mark.parametrize("seconds", [1e18, 1.8e16, float("inf")])
def test_inbox_waits_for_a_message_however_far_away_the_time_is(seconds: float) -> None:
    inbox = Inbox()
    inbox.put(Stop())
    assert inbox.get(seconds) == Stop()
    threading.Timer(0.01, inbox.put, [Stop()]).start()
    assert inbox.get(seconds) == Stop()
