"""The flags about filling in the middle, checked. Pure."""

from typing import Final, Protocol

from superfluid.cli.memory_settings import MIN_WINDOW_TOKENS
from superfluid.config import CompletionConfig, require_range
from superfluid.errors import UsageError

MIN_COMPLETION_RATE: Final = 0.001
MAX_COMPLETION_DEADLINE_MS: Final = 24 * 3600 * 1000
MAX_LANES: Final = 256
MAX_WINDOW_TOKENS: Final = 2**31 - 1


class CompletionFlags(Protocol):
    """Those of ``serve_settings.ServeFlags`` that matter here."""

    @property
    def completion_rate(self) -> float: ...

    @property
    def completion_burst(self) -> int: ...

    @property
    def completion_deadline_ms(self) -> int: ...

    @property
    def fim_model(self) -> str | None: ...

    @property
    def fim_max_context(self) -> int | None: ...

    @property
    def fim_max_batch(self) -> int | None: ...


def completion_config(flags: CompletionFlags) -> CompletionConfig:
    """Raises UsageError naming the flag that is wrong."""
    rate, deadline_ms = flags.completion_rate, flags.completion_deadline_ms
    if rate != 0:
        require_range("--completion-rate", rate, MIN_COMPLETION_RATE, 1e9)
    require_range("--completion-burst", flags.completion_burst, 1, 10**9)
    require_range("--completion-deadline-ms", deadline_ms, 0, MAX_COMPLETION_DEADLINE_MS)
    for name, value, least, most in (
        ("--fim-max-context", flags.fim_max_context, MIN_WINDOW_TOKENS, MAX_WINDOW_TOKENS),
        ("--fim-max-batch", flags.fim_max_batch, 1, MAX_LANES),
    ):
        if value is not None:
            if flags.fim_model is None:
                raise UsageError(f"{name} is for the model of --fim-model, and there is none", param=name)
            require_range(name, value, least, most)
    return CompletionConfig(
        rate=rate,
        burst=flags.completion_burst,
        deadline_seconds=deadline_ms / 1000 if deadline_ms else None,
        model=flags.fim_model,
        window_tokens=flags.fim_max_context,
        lanes=CompletionConfig().lanes if flags.fim_max_batch is None else flags.fim_max_batch,
    )
