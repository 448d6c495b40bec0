"""Stop strings over streamed text. Pure; runs in the daemon."""

from collections.abc import Sequence


class StopMatcher:
    """Hands text on until the first stop string begins. Of several matches the earliest counts, of those at one place
    the shortest, which is complete first.

    An ending that may yet grow into a stop string is held back, so nothing handed out ever has to be taken back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(sorted({stop for stop in stops if stop}, key=len))
        self._longest = len(self._stops[-1]) if self._stops else 0
        self._first_characters = frozenset(stop[0] for stop in self._stops)
        self._held = ""
        self.matched: str | None = None
        """The stop string that was found."""

    def feed(self, text: str) -> str:
        """The text that may go out now. Empty once a stop string was found."""
        if not self._stops:
            return text
        if self.matched is not None:
            return ""
        text = self._held + text
        match = self._first_match(text)
        safe = self._safe_length(text)
        if match is not None and match[0] <= safe:
            self._held = ""
            self.matched = match[1]
            return text[: match[0]]
        # A match behind an ending that may still become an earlier one waits with it.
        self._held = text[safe:]
        return text[:safe]

    def finish(self) -> str:
        """What was held back, now that no more text comes."""
        held, self._held = self._held, ""
        match = self._first_match(held)
        if match is None:
            return held
        self.matched = match[1]
        return held[: match[0]]

    def _first_match(self, text: str) -> tuple[int, str] | None:
        found = [(position, stop) for stop in self._stops if (position := text.find(stop)) >= 0]
        return min(found, key=lambda match: match[0]) if found else None

    def _safe_length(self, text: str) -> int:
        """How much of ``text`` cannot be part of a stop string that is still incomplete."""
        start = max(0, len(text) - self._longest + 1)
        for position in range(start, len(text)):
            if text[position] in self._first_characters:
                tail = text[position:]
                if any(len(stop) > len(tail) and stop.startswith(tail) for stop in self._stops):
                    return position
        return len(text)
