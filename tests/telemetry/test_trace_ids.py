import pytest

from superfluid.telemetry.trace_ids import ROOT_EVENT, event_span_id, session_trace_id, store_namespace

STORE_OF_ONES = bytes([1]) * 16


@pytest.mark.parametrize(
    ("store_id", "session", "namespace", "trace", "root"),
    [
        (STORE_OF_ONES, 7, 576982070287824458, "8635eabbf0e1d1d3ef6a2cba2dc1d488", "2063d09e774f6c68"),
        (bytes(range(16)), 1, 9219343733942863053, "232f8e8cce9c39160e514d504889484f", "8cedc11d4dfe22a1"),
        (None, 1, 0, "2fbc593564db792e828b713919ceb10f", "789e7db5cade5857"),
    ],
)
def test_ids_of_a_known_session_are_those_that_backends_already_hold(
    store_id: bytes | None, session: int, namespace: int, trace: str, root: str
) -> None:
    assert store_namespace(store_id) == namespace
    assert f"{session_trace_id(namespace, session):032x}" == trace
    assert f"{event_span_id(namespace, session):016x}" == root
    assert event_span_id(namespace, session) == event_span_id(namespace, session, ROOT_EVENT)


def test_span_id_of_an_event_depends_on_the_event() -> None:
    namespace = store_namespace(STORE_OF_ONES)

    assert f"{event_span_id(namespace, 7, 3):016x}" == "eae23d102a332e85"
