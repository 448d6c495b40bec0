"""Any order of submits, cancels, preemptions, cut chunks, faults, refused imports and lost saves: the books stay right,
every job ends once and has drawn what it would have drawn alone, and nobody starves.

The shadow compares every kept prefix, chunk and decode row with the job's own stream.
"""

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.fixtures.scheduling import END_TOKEN, Shadow, make_job, make_settings, text

from superfluid.domain.job import PrefixPin
from superfluid.domain.memory import MemoryRules
from superfluid.domain.reply import Finish
from superfluid.domain.request import QosClass
from superfluid.domain.scheduling import SchedulingRules
from superfluid.domain.speculation import NO_SPECULATION, SpeculationRules
from superfluid.errors import QueueFullError
from superfluid.scheduling.pressure import PressureLevel

_WINDOW = 400


def _next_token(stream: list[int]) -> int:
    return END_TOKEN if sum(stream) % 23 == 0 else sum(stream) % 900


def _guess(stream: list[int], limit: int) -> list[int]:
    """Right for as long as the stream's end says, and then wrong."""
    right = sum(stream) % 7
    guesses: list[int] = []
    while len(guesses) < limit:
        token = _next_token([*stream, *guesses])
        guesses.append(token if len(guesses) < right else (token + 1) % 900)
    return guesses


_SPECULATIONS = (
    NO_SPECULATION,
    SpeculationRules(strategy="prompt-lookup", has_gate=False),
    SpeculationRules(strategy="draft-model", draft_tokens=15, is_adaptive=False, has_gate=False, min_yield=0),
    SpeculationRules(strategy="draft-model", yield_rounds=4, reprobe_steps=2, min_speedup=1),
)


_MEMORIES = (
    MemoryRules(),
    MemoryRules(pressure_high_percent=40, pressure_low_percent=10, pin_budget_percent=10),
    MemoryRules(pressure_high_percent=1, pressure_low_percent=0, pin_budget_percent=0),
)


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        lanes=st.integers(1, 5),
        host_cache_bytes=st.sampled_from([0, 20_000, 60_000, 10_000_000]),
        can_truncate=st.booleans(),
        replays_replies=st.booleans(),
        starvation_ticks=st.integers(1, 10),
        decode_budget=st.integers(0, 4),
        caps=st.tuples(*[st.none() | st.just(1)] * 4),
        speculation=st.sampled_from(_SPECULATIONS),
        memory=st.sampled_from(_MEMORIES),
        checked_repeats=st.sampled_from([1, 2, 5, 11]),
    )
    def start(
        self,
        lanes: int,
        host_cache_bytes: int,
        can_truncate: bool,
        replays_replies: bool,
        starvation_ticks: int,
        decode_budget: int,
        caps: tuple[int | None, int | None, int | None, int | None],
        speculation: SpeculationRules,
        memory: MemoryRules,
        checked_repeats: int,
    ) -> None:
        rules = make_settings(
            lanes=lanes,
            window_tokens=_WINDOW,
            max_queue=6,
            host_cache_bytes=host_cache_bytes,
            can_truncate=can_truncate,
            replays_replies=replays_replies,
            rules=SchedulingRules(
                starvation_ticks=starvation_ticks, decode_budget_tokens=decode_budget, class_lanes=caps
            ),
            speculation=speculation,
            memory=memory,
        )
        self.starts: dict[int, int] = {}
        self.max_tokens: dict[int, int] = {}
        self.shadow = Shadow(rules, _next_token)
        self.shadow.guess = _guess
        self.shadow.checked_repeats = checked_repeats

    @rule(
        seed=st.integers(1, 3),
        shared=st.integers(1, 200),
        tail=st.integers(0, 150),
        max_tokens=st.integers(1, 60),
        reply=st.integers(0, 40),
        qos=st.sampled_from(QosClass),
        is_alone=st.sampled_from([False, False, False, True]),
    )
    def submit(
        self, seed: int, shared: int, tail: int, max_tokens: int, reply: int, qos: QosClass, is_alone: bool
    ) -> None:
        tokens = [*text(seed, shared), *(text(100 + tail, tail) if tail else [])]
        prompt_tokens = max(1, len(tokens) - reply)
        self._submit(tokens, prompt_tokens=prompt_tokens, max_tokens=max_tokens, qos=qos, is_alone=is_alone)

    @rule(
        seed=st.integers(1, 3),
        shared=st.sampled_from([20, 60, 100, 200]),
        tails=st.lists(st.integers(0, 60), max_size=5),
        qos=st.sampled_from(QosClass),
    )
    def submit_family(self, seed: int, shared: int, tails: list[int], qos: QosClass) -> None:
        for tail in tails:
            self._submit([*text(seed, shared), *(text(100 + tail, tail) if tail else [])], max_tokens=20, qos=qos)

    @precondition(lambda self: self.shadow.streams)
    @rule(data=st.data(), tail=st.integers(0, 60), max_tokens=st.integers(1, 60))
    def next_turn(self, data: st.DataObject, tail: int, max_tokens: int) -> None:
        stream = self.shadow.streams[data.draw(st.sampled_from(sorted(self.shadow.streams)))]
        self._submit([*stream, *(text(200 + tail, tail) if tail else [])][: _WINDOW - 1], max_tokens=max_tokens)

    @precondition(lambda self: self.shadow.streams)
    @rule(data=st.data())
    def resubmit(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(sorted(self.shadow.streams)))
        stream = self.shadow.streams[job_id]
        self._submit(stream[:_WINDOW], prompt_tokens=self.shadow.prompt_tokens[job_id], max_tokens=80)

    @precondition(lambda self: len(self.shadow.streams) > len(self.shadow.finishes))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        living = sorted(self.shadow.streams.keys() - self.shadow.finishes.keys())
        self.shadow.cancel(data.draw(st.sampled_from(living)))

    @rule(data=st.data())
    def refuse_an_import(self, data: st.DataObject) -> None:
        self.shadow.refused_lanes.add(data.draw(st.integers(0, self.shadow.settings.lanes - 1)))

    @rule(divisor=st.integers(1, 4))
    def set_background_rate(self, divisor: int) -> None:
        self.shadow.scheduler.set_background_rate(divisor)

    @precondition(lambda self: self.shadow.settings.can_truncate)
    @rule(kept=st.integers(0, 100))
    def cut_next_chunk(self, kept: int) -> None:
        for job_id in self.shadow.streams.keys() - self.shadow.finishes.keys():
            self.shadow.cuts[job_id] = kept

    @rule(is_failing=st.booleans())
    def fail_saves(self, is_failing: bool) -> None:
        self.shadow.is_save_failing = is_failing

    @precondition(lambda self: len(self.shadow.streams) > len(self.shadow.finishes))
    @rule(data=st.data())
    def fault(self, data: st.DataObject) -> None:
        living = sorted(self.shadow.streams.keys() - self.shadow.finishes.keys())
        self.shadow.faulty_jobs.add(data.draw(st.sampled_from(living)))

    @rule(data=st.data())
    def copy(self, data: st.DataObject) -> None:
        lane = data.draw(st.integers(0, self.shadow.settings.lanes - 1))
        if not self.shadow.scheduler.lane_views()[lane].job_id:
            self.shadow.copy(lane)

    @rule(level=st.sampled_from(PressureLevel))
    def system_pressure(self, level: PressureLevel) -> None:
        self.shadow.scheduler.system_pressure(level)

    @rule(session=st.integers(1, 3), seconds=st.integers(-5, 50))
    def pin_session(self, session: int, seconds: int) -> None:
        now = self.shadow.now_unix
        self.shadow.scheduler.pins.set_session(session, now + seconds, now)

    @rule(seconds=st.integers(1, 60))
    def pass_time(self, seconds: int) -> None:
        self.shadow.now_unix += seconds
        self.shadow.scheduler.pins.expire(self.shadow.now_unix)

    @rule(ticks=st.integers(1, 30))
    def step(self, ticks: int) -> None:
        for _ in range(ticks):
            is_idle = self.shadow.scheduler.is_idle
            plan = self.shadow.step()
            assert is_idle or not plan.is_empty or plan.pause_seconds

    def teardown(self) -> None:
        if hasattr(self, "shadow"):
            self.shadow.run()
            assert self.shadow.finishes.keys() == self.shadow.streams.keys()
            self.shadow.step()
            entries = self.shadow.scheduler.statistics().host_cache_entries
            assert len(self.shadow.host) == entries
            self._check_replies()

    def _check_replies(self) -> None:
        """Nothing lost, nothing twice: each stream is what its job draws alone, at most as long as it may be."""
        for job_id, submitted in self.starts.items():
            stream = self.shadow.streams[job_id]
            for length in range(submitted, len(stream)):
                assert stream[length] == _next_token(stream[:length])
            if self.shadow.finishes[job_id] is Finish.LENGTH:
                assert len(stream) == min(_WINDOW, submitted + self.max_tokens[job_id])

    def _submit(
        self,
        tokens: list[int],
        *,
        max_tokens: int,
        prompt_tokens: int | None = None,
        qos: QosClass = QosClass.AGENT,
        is_alone: bool = False,
    ) -> None:
        job = make_job(tokens, max_tokens=max_tokens, prompt_tokens=prompt_tokens, qos=qos, is_batch_invariant=is_alone)
        # What follows from the tokens alone: sessions, input ends and pins that come back with the same streams.
        length = job.prompt_tokens
        job = msgspec.structs.replace(
            job,
            session=tokens[0] % 4,
            input_tokens=max(0, length - 3) if length % 2 else 0,
            prefix_pins=[PrefixPin(length // 2, 20_000)] if length % 3 == 0 else [],
        )
        try:
            self.shadow.submit(job)
        except QueueFullError:
            assert sum(self.shadow.scheduler.statistics().queue_depth) >= 6
        else:
            self.starts[job.job_id], self.max_tokens[job.job_id] = len(tokens), max_tokens


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@given(
    lanes=st.integers(1, 3),
    chats=st.lists(st.tuples(st.integers(10, 200), st.integers(3, 60)), min_size=1, max_size=8),
    qos=st.sampled_from([QosClass.AGENT, QosClass.BACKGROUND]),
)
@settings(max_examples=15, deadline=None)
def test_job_beside_chats_without_end_is_done_in_the_end(
    lanes: int, chats: list[tuple[int, int]], qos: QosClass
) -> None:
    """More chats than lanes at any time, for ever. What the job needs takes it about two seconds alone."""
    shadow = Shadow(make_settings(lanes=lanes, window_tokens=1000))
    worse = shadow.submit(make_job(text(1, 200), max_tokens=20, qos=qos))
    count = 0
    while not shadow.is_over(worse):
        while sum(shadow.scheduler.statistics().queue_depth) <= lanes:
            prompt, reply = chats[count % len(chats)]
            count += 1
            shadow.submit(make_job(text(10 + count, prompt), max_tokens=reply, qos=QosClass.INTERACTIVE))
        shadow.step()
        assert shadow.seconds < 100
