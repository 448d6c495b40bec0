"""The rules that the rows of a step obey, checked alike by all engines. Pure; runs in the worker."""

from collections.abc import Sequence

from superfluid.engine.interface import ImageRow, Row


def check_rows(rows: Sequence[Row], lengths: Sequence[int], window_tokens: int) -> None:
    """Raises ValueError naming the first row that breaks the contract; a scheduler that plans such a step has a bug.

    ``lengths`` are the tokens each lane holds now.
    """
    previous = -1
    for row in rows:
        lane, count = row.lane, len(row.tokens)
        if not previous < lane < len(lengths):
            raise ValueError(f"lane {lane} after {previous}: rows ascend and lanes are below {len(lengths)}")
        if count == 0:
            raise ValueError(f"lane {lane}: a row without tokens")
        if row.position != lengths[lane]:
            raise ValueError(f"lane {lane}: position {row.position}, but it holds {lengths[lane]} tokens")
        if row.position + count > window_tokens:
            raise ValueError(f"lane {lane}: {row.position} + {count} tokens exceed the window of {window_tokens}")
        if row.wants_logits not in ("last", "all", "none"):
            raise ValueError(f"lane {lane}: wants_logits {row.wants_logits!r}")
        previous = lane
    if previous < 0:
        raise ValueError("a step without rows")


def check_image_row(row: ImageRow, lengths: Sequence[int], window_tokens: int) -> None:
    """As ``check_rows``, for a step of one image."""
    if not 0 <= row.lane < len(lengths):
        raise ValueError(f"lane {row.lane}: lanes are below {len(lengths)}")
    if row.position != lengths[row.lane]:
        raise ValueError(f"lane {row.lane}: position {row.position}, but it holds {lengths[row.lane]} tokens")
    if row.length < 1 or row.position + row.length > window_tokens:
        raise ValueError(f"lane {row.lane}: {row.position} + {row.length} tokens in a window of {window_tokens}")


def check_cut(lane: int, length: int, held: int) -> None:
    """Raises ValueError unless ``length`` is 0 to ``held``."""
    if not 0 <= length <= held:
        raise ValueError(f"lane {lane} holds {held} tokens and cannot be cut to {length}")
