"""What the daemon knows of parked states: which session has how much on the disk."""

from array import array

from superfluid.kvfiles.names import token_digest
from superfluid.worker.parked_files import ParkedFiles
from superfluid.worker.prefix_marks import packed_digests
from superfluid.worker.protocol import KvChanged, KvFileAdded, KvTotals

STREAM = array("i", range(500))
OTHER = array("i", range(1000, 1500))


def added(file_id: int, tokens: "array[int]", session: int | None = 1) -> KvFileAdded:
    return KvFileAdded(file_id, session, len(tokens), token_digest(tokens.tobytes()))


def change(*files: KvFileAdded, removed: tuple[int, ...] = (), totals: KvTotals | None = None) -> KvChanged:
    return KvChanged(list(files), list(removed), totals or KvTotals())


def test_session_has_its_longest_state_until_that_is_removed() -> None:
    parked = ParkedFiles()
    parked.take(change(added(1, STREAM[:300]), added(2, STREAM[:400]), added(3, STREAM[:450], session=2)))
    assert [parked.covered_tokens(session, OTHER) for session in (1, 2, 3)] == [400, 450, 0]
    parked.take(change(removed=(2, 3, 99)))
    assert [parked.covered_tokens(session, OTHER) for session in (1, 2)] == [300, 0]


def test_file_that_comes_and_goes_in_one_report_is_gone() -> None:
    parked = ParkedFiles()
    parked.take(change(added(1, STREAM[:300]), removed=(1,)))
    assert parked.covered_tokens(1, STREAM) == 0


def test_prefix_is_the_longest_state_within_the_stream_whosever_it_is() -> None:
    parked = ParkedFiles()
    other = STREAM[:350]
    other[340] = -5
    parked.take(change(added(1, STREAM[:300]), added(2, other), added(3, array("i", [*STREAM, 1]))))
    assert parked.covered_tokens(9, STREAM) == 300
    assert parked.covered_tokens(9, STREAM[:299]) == 0
    parked.take(change(added(4, STREAM[:300], session=None), removed=(1,)))
    assert parked.covered_tokens(9, STREAM) == 300
    parked.take(change(removed=(4,)))
    assert parked.covered_tokens(9, STREAM) == 0


def test_beginning_of_another_sessions_file_counts_up_to_a_mark() -> None:
    lengths = [256, 288, 324]
    parked = ParkedFiles()
    digests = packed_digests(STREAM.tobytes(), lengths)
    parked.take(change(KvFileAdded(1, 7, 500, token_digest(STREAM.tobytes()), lengths, digests)))
    assert [parked.covered_tokens(8, STREAM[:length]) for length in (500, 323, 288, 255)] == [500, 288, 288, 0]


def test_erased_sessions_file_is_gone_before_the_worker_says_so() -> None:
    parked = ParkedFiles()
    parked.take(change(added(1, STREAM[:300]), added(2, STREAM[:400], session=2)))
    parked.forget([1])
    parked.take(change(added(3, STREAM[:320])))
    assert (parked.covered_tokens(1, STREAM[:350]), len(parked.newest(9))) == (0, 1)


def test_lost_worker_takes_its_files_along_and_leaves_its_counts() -> None:
    parked = ParkedFiles()
    parked.take(change(added(1, STREAM), totals=KvTotals(5, 4, 3, 2, files=1, size_bytes=10)))
    parked.worker_lost()
    assert (parked.covered_tokens(1, STREAM), parked.newest(9)) == (0, ())
    assert parked.totals() == KvTotals(5, 4, 3, 2)
    parked.take(change(added(1, STREAM), totals=KvTotals(1, 1, 1, 1, files=2, size_bytes=20)))
    assert parked.totals() == KvTotals(6, 5, 4, 3, files=2, size_bytes=20)
