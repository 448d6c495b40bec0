"""The jobs that wait for a lane: a queue for each class, and whose turn it is. Pure; lives in the worker."""

from collections import OrderedDict
from collections.abc import Container, Iterator
from itertools import chain
from typing import NamedTuple

from superfluid.domain.request import QosClass
from superfluid.scheduling.sequence import Sequence


class Candidate(NamedTuple):
    """A job whose turn it is. ``effective_class`` can be below 0. ``is_grant``: it passes a job of a better class,
    because it has waited so much longer."""

    sequence: Sequence
    effective_class: int
    is_grant: bool


class JobQueue:
    """First in, first out within a class, except that a job which has lost its lane comes first.

    Time is counted in ticks, whole and broken ones, of whatever length the caller means by that.
    """

    def __init__(self, starvation_ticks: int) -> None:
        self._starvation_ticks = starvation_ticks
        self._classes: tuple[OrderedDict[int, Sequence], ...] = tuple(OrderedDict() for _ in QosClass)

    def __len__(self) -> int:
        return sum([len(waiting) for waiting in self._classes])

    def __contains__(self, job_id: object) -> bool:
        return any(job_id in waiting for waiting in self._classes)

    def __iter__(self) -> Iterator[Sequence]:
        """By class, and in the order of each."""
        return chain.from_iterable(waiting.values() for waiting in self._classes)

    def find(self, job_id: int) -> Sequence | None:
        return next((waiting[job_id] for waiting in self._classes if job_id in waiting), None)

    @property
    def has_urgent(self) -> bool:
        """Whether a job waits for which others may lose their lanes."""
        return bool(self._classes[QosClass.INTERACTIVE] or self._classes[QosClass.COMPLETION])

    def depth(self) -> tuple[int, int, int, int]:
        """Jobs that wait, per class."""
        first, second, third, fourth = (len(waiting) for waiting in self._classes)
        return first, second, third, fourth

    def add(self, sequence: Sequence, now: float) -> None:
        sequence.queued_at = now
        self._classes[sequence.job.qos][sequence.job_id] = sequence

    def put_back(self, sequence: Sequence, now: float) -> None:
        """At the head of its class. Its wait begins anew."""
        self.add(sequence, now)
        self._classes[sequence.job.qos].move_to_end(sequence.job_id, last=False)

    def remove(self, job_id: int) -> bool:
        """Whether it was there."""
        return any(waiting.pop(job_id, None) is not None for waiting in self._classes)

    def effective_class(self, sequence: Sequence, now: float) -> int:
        """The class, improved by one for every full period that the job has waited."""
        return sequence.job.qos - int((now - sequence.queued_at) // self._starvation_ticks)

    def candidates(self, now: float, closed: Container[QosClass]) -> Iterator[Candidate]:
        """All jobs, best effective class first; among equals those that run alone, then the better class, then the
        older job. A class is passed over from the moment it is in ``closed``. The queue may change meanwhile; who joins
        it is not seen."""
        lines = [iter(tuple(waiting.values())) for waiting in self._classes]
        heads = [next(line, None) for line in lines]
        while True:
            standing = [head for head in heads if head is not None and head.job.qos not in closed]
            if not standing:
                return
            best = min(standing, key=lambda head: self._rank(head, now))
            qos = best.job.qos
            heads[qos] = next(lines[qos], None)
            is_grant = any(head.job.qos < qos for head in standing)
            yield Candidate(best, self.effective_class(best, now), is_grant)

    def _rank(self, sequence: Sequence, now: float) -> tuple[int, bool, int]:
        return self.effective_class(sequence, now), not sequence.job.is_batch_invariant, sequence.job.qos
