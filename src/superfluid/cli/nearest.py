"""The word that somebody probably meant. Pure."""

from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that ``word`` begins, else the closest one within max(2, a third of its length) edits."""
    candidates = sorted(known)
    prefixed = [each for each in candidates if each.startswith(word)]
    if prefixed:
        return min(prefixed, key=len)
    # Of one or two letters, two edits would leave nothing.
    limit = min(max(2, len(word) // 3), len(word) - 1)
    distances = [(edit_distance(word, each), each) for each in candidates]
    distance, best = min(distances, default=(limit + 1, ""))
    return best if distance <= limit else None


def edit_distance(left: str, right: str) -> int:
    """Levenshtein's distance: how many letters must be put in, taken out or replaced."""
    row = list(range(len(right) + 1))
    for i, letter in enumerate(left, start=1):
        previous, row[0] = row[0], i
        for j, other in enumerate(right, start=1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (letter != other))
    return row[-1]
