"""The daemon's record of running jobs: what is delivered, and what a new worker is given."""

import struct
from collections.abc import Sequence

import msgspec
import pytest
from tests.fixtures.job_sink import RecordingSink, make_job

from superfluid.domain.reply import Finish
from superfluid.domain.request import QosClass
from superfluid.errors import EngineFaultError, ShuttingDownError, WorkerFailedError
from superfluid.worker.frames import FrameError
from superfluid.worker.journal import MAX_LOSSES_WITHOUT_TOKEN, JobJournal
from superfluid.worker.protocol import LaneOutput, TokenScores


def packed(*tokens: int) -> bytes:
    return struct.pack(f"<{len(tokens)}i", *tokens)


def journal_with(*job_ids: int, max_tokens: int = 20) -> tuple[JobJournal, list[RecordingSink]]:
    journal = JobJournal()
    sinks = [RecordingSink() for _ in job_ids]
    for job_id, sink in zip(job_ids, sinks, strict=True):
        journal.add(make_job(job_id, max_tokens=max_tokens), sink)
        journal.to_send(job_id)
    return journal, sinks


def test_job_never_sent_is_sent_as_it_is() -> None:
    journal = JobJournal()
    journal.add(make_job(1), RecordingSink())
    journal.worker_lost()
    assert journal.to_send(1) == make_job(1)


def test_lost_job_goes_on_behind_what_was_received() -> None:
    journal, _ = journal_with(1)
    journal.deliver(LaneOutput(1, packed(7), warm_tokens=0))
    journal.deliver(LaneOutput(1, packed(8, 9)))
    journal.worker_lost()
    job = journal.to_send(1)
    assert job.tokens == packed(1, 2, 3, 7, 8, 9)
    assert (job.prompt_tokens, job.max_tokens, job.is_resubmission) == (3, 17, True)


def test_twice_lost_job_counts_each_token_once() -> None:
    journal, _ = journal_with(1)
    for token in (7, 8):
        journal.deliver(LaneOutput(1, packed(token), warm_tokens=0))
        journal.worker_lost()
        job = journal.to_send(1)
    assert job.tokens == packed(1, 2, 3, 7, 8)
    assert job.max_tokens == 18


def test_lost_jobs_keep_the_order_of_submission() -> None:
    journal, _ = journal_with(5, 3, 4)
    journal.worker_lost()
    assert journal.job_ids() == [5, 3, 4]


def test_lost_job_with_no_tokens_left_finishes_by_length() -> None:
    journal, (sink,) = journal_with(1, max_tokens=2)
    journal.deliver(LaneOutput(1, packed(7, 8), warm_tokens=0))
    journal.worker_lost()
    assert sink.finish is Finish.LENGTH
    assert len(journal) == 0


def test_lost_job_that_was_cancelled_finishes_cancelled() -> None:
    journal, (sink, other) = journal_with(1, 2)
    journal.mark_cancelled(1)
    journal.worker_lost()
    assert sink.finish is Finish.CANCELLED
    assert not other.is_done


def test_job_that_outlives_no_worker_fails_in_the_end() -> None:
    journal, (poison, other) = journal_with(1, 2)
    for _ in range(MAX_LOSSES_WITHOUT_TOKEN):
        assert not poison.is_done
        journal.placed([1, 2])
        journal.deliver(LaneOutput(2, packed(7), warm_tokens=0))
        journal.worker_lost()
    assert isinstance(poison.error, WorkerFailedError)
    assert not other.is_done


def test_job_that_waits_for_a_lane_is_not_taken_for_the_killer_of_workers() -> None:
    journal, (poison, waiting) = journal_with(1, 2)
    for _ in range(3 * MAX_LOSSES_WITHOUT_TOKEN):
        journal.placed([1, 99])
        journal.worker_lost()
    assert isinstance(poison.error, WorkerFailedError)
    assert not waiting.is_done


def test_second_admission_does_not_start_the_sink_again() -> None:
    journal, (sink,) = journal_with(1)
    journal.deliver(LaneOutput(1, b"", warm_tokens=2))
    journal.worker_lost()
    journal.deliver(LaneOutput(1, packed(7), warm_tokens=3))
    assert sink.warm_tokens == 2
    assert sink.received == [7]


def test_waiting_jobs_are_counted_by_class_until_they_have_a_lane() -> None:
    journal = JobJournal()
    journal.add(make_job(1, qos=QosClass.INTERACTIVE), RecordingSink())
    journal.add(make_job(2, qos=QosClass.BACKGROUND), RecordingSink())
    journal.to_send(1)
    journal.deliver(LaneOutput(1, b"", warm_tokens=0))
    assert (journal.jobs_with_lane, journal.waiting_by_class()) == (1, (0, 0, 0, 1))
    journal.worker_lost()
    assert (journal.jobs_with_lane, journal.waiting_by_class()) == (0, (1, 0, 0, 1))


def test_scores_are_passed_on_with_their_tokens() -> None:
    class ScoreSink(RecordingSink):
        def tokens(self, tokens: Sequence[int], scores: Sequence[object]) -> None:
            super().tokens(tokens, ())
            self.scores = scores

    journal = JobJournal()
    sink = ScoreSink()
    journal.add(make_job(1), sink)
    scores = [TokenScores(-0.5, [7], [-0.5])]
    journal.deliver(LaneOutput(1, packed(7), warm_tokens=0, scores=scores))
    assert sink.scores == scores


def test_faulted_job_fails_with_an_engine_fault() -> None:
    journal, (sink,) = journal_with(1)
    journal.deliver(LaneOutput(1, b"", Finish.ERROR))
    assert isinstance(sink.error, EngineFaultError)


def test_output_of_an_unknown_job_is_ignored() -> None:
    journal, (sink,) = journal_with(1)
    assert journal.deliver(LaneOutput(2, packed(7))) is None
    assert not sink.received


def test_ragged_tokens_are_a_frame_error() -> None:
    journal, _ = journal_with(1)
    with pytest.raises(FrameError):
        journal.deliver(LaneOutput(1, b"\x01\x02\x03"))


def test_fail_all_reaches_every_sink_though_one_raises() -> None:
    class Broken(RecordingSink):
        def failed(self, error: object) -> None:
            raise RuntimeError("a bug")

    journal = JobJournal()
    sink = RecordingSink()
    journal.add(make_job(1), Broken())
    journal.add(make_job(2), sink)
    journal.fail_all(ShuttingDownError("down"))
    assert isinstance(sink.error, ShuttingDownError)
    assert len(journal) == 0


def test_job_that_is_sent_again_tells_the_pin_of_now() -> None:
    journal = JobJournal()
    for job_id, session in ((1, 7), (2, 8)):
        job = msgspec.structs.replace(make_job(job_id), session=session, pin_deadline_unix_ms=1000)
        journal.add(job, RecordingSink())
        journal.to_send(job_id)
    journal.pin(7, 0)
    journal.worker_lost()
    assert [journal.to_send(job_id).pin_deadline_unix_ms for job_id in (1, 2)] == [0, 1000]
