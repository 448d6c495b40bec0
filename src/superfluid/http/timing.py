"""Times deliveries for the access log. Pure: the clock's readings are arguments, in seconds."""

from collections.abc import Sequence

from superfluid.http.collect import Ending, ReplyProgress
from superfluid.sessions.interface import GenerationTiming


class DeliverySpan:
    """First and last delivery of one reply that carried tokens. The first one's tokens do not count as decoded."""

    def __init__(self) -> None:
        self.first_seconds: float | None = None
        self._first_tokens = 0
        self._last_seconds = 0.0
        self._last_tokens = 0

    def stamp(self, now: float, tokens: int) -> None:
        """``tokens`` is the reply's count so far; a delivery that adds none is not counted."""
        if tokens <= self._last_tokens:
            return
        if self.first_seconds is None:
            self.first_seconds = now
            self._first_tokens = tokens
        self._last_seconds = now
        self._last_tokens = tokens

    @property
    def decode_tokens(self) -> int:
        return self._last_tokens - self._first_tokens

    @property
    def decode_seconds(self) -> float:
        return 0.0 if self.first_seconds is None else self._last_seconds - self.first_seconds


class GenerationMeter:
    """The measurements of one request with one or more replies."""

    def __init__(self, started: float) -> None:
        self._started = started
        self.replies: list[tuple[ReplyProgress, DeliverySpan]] = []

    def add_reply(self, now: float) -> tuple[ReplyProgress, DeliverySpan]:
        """For a reply that was accepted just now."""
        pair = (ReplyProgress(self._started, now), DeliverySpan())
        self.replies.append(pair)
        return pair

    def timing(self, *, route: str, model: str, prompt_tokens: int, now: float) -> GenerationTiming:
        """Prompt, warm tokens: the first reply's. Completion and decode: summed. Ending: the last reply's."""
        spans = [span for _, span in self.replies]
        firsts = [span.first_seconds for span in spans if span.first_seconds is not None]
        decode_tokens = sum(span.decode_tokens for span in spans)
        decode_seconds = sum(span.decode_seconds for span in spans)
        return GenerationTiming(
            route=route,
            model=model,
            prompt_tokens=prompt_tokens,
            cached_tokens=self.replies[0][0].warm_tokens,
            completion_tokens=_completion_tokens([progress for progress, _ in self.replies]),
            first_token_seconds=min(firsts) - self._started if firsts else None,
            decode_tokens=decode_tokens,
            decode_seconds=decode_seconds if decode_tokens > 0 and decode_seconds > 0 else None,
            total_seconds=now - self._started,
            finish=self._last_ending(),
        )

    def _last_ending(self) -> Ending:
        return self.replies[-1][0].ending


def _completion_tokens(replies: Sequence[ReplyProgress]) -> int:
    return sum(reply.finished.completion_tokens for reply in replies if reply.finished is not None)
