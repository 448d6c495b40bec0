"""Which exception a refusal becomes."""

import pytest
from superfluid_client import (
    InfillUnsupported,
    ModelLoading,
    NothingInFlight,
    PermissionPending,
    RequestRefused,
    ServerStopping,
    SessionBusy,
    SessionPurged,
    UnknownSession,
    VersionConflict,
)
from superfluid_client.errors import refusal


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("session 4 is generating; wait for the end or cancel it", SessionBusy),
        ("session 4 is generating; it was cancelled and did not end within 5 s, so nothing was purged", SessionBusy),
        ("session 5, a child of session 4, is being dropped: nothing was purged, try again", RequestRefused),
        ("unknown session 4", UnknownSession),
        ("session 4 was purged", SessionPurged),
        ("session 4: no generation in flight", NothingInFlight),
        ("session 4 has metadata version 2, not 1; somebody else changed it", VersionConflict),
        ("session 4 has generation 0, not 1: this is a conflict, and nothing was purged", VersionConflict),
        ("session 4 waits for a permission; answer it first", PermissionPending),
        ("this model cannot fill in the middle: its vocabulary has no tokens for it", InfillUnsupported),
        ("the model x is still loading", ModelLoading),
        ("the server is shutting down and takes no new requests", ServerStopping),
        ("event 9 is no fork point: this session allows 1 to 4", RequestRefused),
    ],
)
def test_refusal_is_told_by_its_words(message: str, kind: type[RequestRefused]) -> None:
    refused = refusal(message)
    assert type(refused) is kind
    assert refused.message == message
