"""Which tokens the pins of a request stand for. Pure; runs in the daemon."""

from array import array

from superfluid.chat.interface import Rendered
from superfluid.domain.job import PrefixPin
from superfluid.domain.request import GenerationRequest


def prefix_pins(request: GenerationRequest, rendered: Rendered, tokens: "array[int]") -> list[PrefixPin]:
    """The pins of ``request``, whose conversation was ``rendered`` and whose input is ``tokens``, the shortest first.

    A beginning that was computed with an adapter is not kept, so it is not pinned either.
    """
    if request.adapter or not request.pins:
        return []
    longest: dict[int, int] = {}
    for pin in request.pins:
        length = _end_in(tokens, rendered, pin.message)
        longest[length] = max(pin.ttl_ms, longest.get(length, 0))
    return [PrefixPin(length, ttl_ms) for length, ttl_ms in sorted(longest.items()) if length]


def _end_in(tokens: "array[int]", rendered: Rendered, message: int) -> int:
    """Where in the input a message ends.

    The input can have the stored tokens of earlier replies where the rendering has its own: with equal tokens before
    or behind the end, it is found exactly. Between two replies that differ it is as near as their lengths are.
    """
    # A message that the template writes into the next one (a system text into the first turn) has no end of its own.
    end = next((end for end in rendered.message_ends[message:] if end), 0)
    written = array("i", rendered.tokens)
    if tokens[:end] == written[:end]:
        return end
    from_end = len(tokens) - (len(written) - end)
    if from_end > 0 and tokens[from_end:] == written[end:]:
        return from_end
    return min(end, len(tokens))
