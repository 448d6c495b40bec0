"""Any order of submits, cancels, faults, refused imports and lost saves: the books stay right and every job ends once.

The shadow compares every kept prefix, chunk and decode row with the job's own stream.
"""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.fixtures.scheduling import END_TOKEN, Shadow, make_job, make_settings, text

from superfluid.errors import QueueFullError

_WINDOW = 400


def _next_token(stream: list[int]) -> int:
    return END_TOKEN if sum(stream) % 23 == 0 else sum(stream) % 900


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        lanes=st.integers(1, 5),
        host_cache_bytes=st.sampled_from([0, 20_000, 60_000, 10_000_000]),
        can_truncate=st.booleans(),
        replays_replies=st.booleans(),
    )
    def start(self, lanes: int, host_cache_bytes: int, can_truncate: bool, replays_replies: bool) -> None:
        rules = make_settings(
            lanes=lanes,
            window_tokens=_WINDOW,
            max_queue=6,
            host_cache_bytes=host_cache_bytes,
            can_truncate=can_truncate,
            replays_replies=replays_replies,
        )
        self.shadow = Shadow(rules, _next_token)

    @rule(
        seed=st.integers(1, 3),
        shared=st.integers(1, 200),
        tail=st.integers(0, 150),
        max_tokens=st.integers(1, 60),
        reply=st.integers(0, 40),
    )
    def submit(self, seed: int, shared: int, tail: int, max_tokens: int, reply: int) -> None:
        tokens = [*text(seed, shared), *(text(100 + tail, tail) if tail else [])]
        self._submit(tokens, prompt_tokens=max(1, len(tokens) - reply), max_tokens=max_tokens)

    @rule(
        seed=st.integers(1, 3),
        shared=st.sampled_from([20, 60, 100, 200]),
        tails=st.lists(st.integers(0, 60), max_size=5),
    )
    def submit_family(self, seed: int, shared: int, tails: list[int]) -> None:
        for tail in tails:
            self._submit([*text(seed, shared), *(text(100 + tail, tail) if tail else [])], max_tokens=20)

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

    @rule(is_failing=st.booleans())
    def fail_saves(self, is_failing: bool) -> None:
        self.shadow.is_save_failing = is_failing

    @precondition(lambda self: len(self.shadow.streams) > len(self.shadow.finishes))
    @rule(data=st.data())
    def fault(self, data: st.DataObject) -> None:
        living = sorted(self.shadow.streams.keys() - self.shadow.finishes.keys())
        self.shadow.faulty_jobs.add(data.draw(st.sampled_from(living)))

    @rule(ticks=st.integers(1, 30))
    def step(self, ticks: int) -> None:
        for _ in range(ticks):
            is_idle = self.shadow.scheduler.is_idle
            plan = self.shadow.step()
            assert is_idle or not plan.is_empty

    def teardown(self) -> None:
        if hasattr(self, "shadow"):
            self.shadow.run()
            assert self.shadow.finishes.keys() == self.shadow.streams.keys()
            self.shadow.step()
            entries = self.shadow.scheduler.statistics().host_cache_entries
            assert len(self.shadow.host) == entries

    def _submit(self, tokens: list[int], *, max_tokens: int, prompt_tokens: int | None = None) -> None:
        try:
            self.shadow.submit(make_job(tokens, max_tokens=max_tokens, prompt_tokens=prompt_tokens))
        except QueueFullError:
            assert self.shadow.scheduler.statistics().queue_depth[2] >= 6


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
