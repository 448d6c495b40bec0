"""Lines about the scheduler's inner workings, for SUPERFLUID_DEBUG_TICK and SUPERFLUID_DEBUG_PRESSURE. Pure; written by
the worker to stderr.
"""

from superfluid.scheduling.plan import EvictionLook, StepPlan
from superfluid.scheduling.scheduler import Scheduler
from superfluid.worker.executor import Execution
from superfluid.worker.ticks import TickTimes


def tick_line(plan: StepPlan, execution: Execution, times: TickTimes, scheduler: Scheduler) -> str:
    """One tick: times in seconds, counts, and what the rates have learned. Names are those of earlier versions."""
    statistics = scheduler.statistics()
    lanes = len(plan.decodes)
    values = {
        "secs": f"{times.done - times.begun:.3f}",
        "pf_secs": f"{execution.chunk_seconds:.3f}",
        "dec_secs": f"{execution.decode_seconds:.3f}",
        "prefill_tok": execution.chunk_completed,
        "rounds": int(lanes > 0),
        "P_eff": statistics.lanes_prefilling + sum(statistics.queue_depth),
        "P_plan": int(plan.chunk is not None),
        "D": lanes,
        "round_secs": f"{scheduler.rates.decode_seconds(lanes):.4f}" if lanes else "none",
        "pf_secs_per_tok": f"{scheduler.rates.prefill_seconds_per_token:.5f}",
        "budget": plan.chunk_budget_tokens,
        "grant": 1,
    }
    return "[tick] " + " ".join(f"{name}={value}" for name, value in values.items())


def pressure_line(look: EvictionLook) -> str:
    """What there was before a decision to give up prefixes: blocks of all lanes, bytes of host memory."""
    return f"[pressure] used={look.used_blocks} total={look.total_blocks} evictable={look.evictable_bytes}"
