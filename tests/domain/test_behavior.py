"""The digest over what decides a session's next tokens besides its log."""

import pytest

from superfluid.domain import behavior
from superfluid.domain.behavior import behavior_fingerprint


def test_fingerprint_is_a_u64_that_does_not_change_between_processes() -> None:
    # Written down: sessions on the disk hold it, and a change by accident would add a record to each of them.
    assert behavior_fingerprint(b"codec") == 110653065966345778
    assert 0 <= behavior_fingerprint(b"") < 2**64


def test_fingerprint_tells_codecs_and_drafts_apart() -> None:
    digests = {
        behavior_fingerprint(b"codec"),
        behavior_fingerprint(b"codec 2"),
        behavior_fingerprint(b"codec", speculation="lookup 1"),
    }
    assert len(digests) == 3


@pytest.mark.parametrize("name", ["SAMPLING_VERSION", "GRAMMAR_VERSION", "VISIBILITY_VERSION"])
def test_fingerprint_changes_with_the_version_of_each_rule(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    before = behavior_fingerprint(b"codec")
    monkeypatch.setattr(behavior, name, getattr(behavior, name) + 1)
    assert behavior_fingerprint(b"codec") != before
