"""Position-indexed sampling: which token comes next, given the logits. Pure in its results; runs in the worker.

The steps, in order: grammar mask, logit bias, penalties (repeat, presence, frequency), temperature, cuts by top-k,
min-p and top-p, each measured on the softmax over the whole vocabulary, then the draw. Temperature 0 is the argmax.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from superfluid.domain.request import SamplingParams
from superfluid.engine.interface import Logits
from superfluid.errors import EngineFaultError

PENALTY_WINDOW_TOKENS: Final = 64
MINIMUM_TEMPERATURE: Final = 1e-6
"""Below this, a positive temperature counts as this one: float32 cannot tell such distributions from the argmax."""

_WORD = (1 << 64) - 1
_GOLDEN_GAMMA = 0x9E3779B97F4A7C15
_BLOCK = 256
_FOLD = 64
_FIRST_GUESS = 128
_BINS = 1024
_BINS_PER_UNIT = 32

Mask = NDArray[np.bool_]
_Ids = NDArray[np.intp]


class Scores(NamedTuple):
    """Natural log-probabilities after bias and penalties, before temperature; ``top_tokens`` are best first."""

    chosen: float
    top_tokens: list[int]
    top_logprobs: list[float]


class Draw(NamedTuple):
    """The next token, and its scores if they were asked for."""

    token: int
    scores: Scores | None = None


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on its arguments alone: two rounds of the SplitMix64 finalizer
    (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014) over seed and position, upper 53 bits."""
    return (_mix(_mix(seed & _WORD) + _GOLDEN_GAMMA * (position + 1) & _WORD) >> 11) * 2.0**-53


class Sampler:
    """Draws for one vocabulary. Keeps nothing between draws but scratch memory; belongs to one thread."""

    def __init__(self, vocabulary_tokens: int, unpenalized: frozenset[int] = frozenset()) -> None:
        self._size = vocabulary_tokens
        self._unpenalized = unpenalized
        self._adjusted = np.empty(vocabulary_tokens, np.float32)
        self._weights = np.empty(vocabulary_tokens, np.float32)
        self._everything: _Ids = np.arange(vocabulary_tokens)

    def draw(
        self,
        logits: Logits,
        params: SamplingParams,
        position: int,
        recent: Sequence[int] = (),
        *,
        mask: Mask | None = None,
        top_n: int | None = None,
    ) -> Draw:
        """The token at ``position`` of its stream. ``logits`` is one row, left as it is.

        ``recent`` is the stream so far or its end; penalties look at its last 64 tokens. ``mask`` is true where a token
        is allowed. ``top_n`` asks for scores with that many alternatives. Raises EngineFaultError if no logit is
        finite, or one of them is NaN or +inf.
        """
        if top_n is None and mask is None and is_plainly_greedy(params):
            token = greatest(logits[np.newaxis])[0]
            if token is not None and token not in params.logit_bias:
                return Draw(token)
        logits = self._adjust(logits, params, recent, mask)
        best = int(logits.argmax())
        peak = float(logits[best])
        if not np.isfinite(peak):
            raise EngineFaultError(f"the model's logits are of no use: the greatest is {peak}")
        token = best if params.temperature <= 0 else self._sample(logits, peak, params, uniform(params.seed, position))
        return Draw(token, None if top_n is None else self._score(logits, peak, token, top_n))

    def _adjust(self, logits: Logits, params: SamplingParams, recent: Sequence[int], mask: Mask | None) -> Logits:
        """Mask, bias and penalties, on a copy if there are any."""
        has_penalties = is_penalizing(params)
        if mask is None and not params.logit_bias and not has_penalties:
            return logits
        adjusted = self._adjusted
        np.copyto(adjusted, logits)
        if mask is not None:
            np.copyto(adjusted, np.float32(-np.inf), where=~mask)
        for token, bias in params.logit_bias.items():
            if 0 <= token < self._size:
                adjusted[token] += np.float32(bias)
        if has_penalties:
            self._penalize(adjusted, params, recent)
        return adjusted

    def _penalize(self, logits: Logits, params: SamplingParams, recent: Sequence[int]) -> None:
        """The penalties of llama.cpp: repeat divides a positive logit and multiplies any other; then presence and
        frequency are subtracted. A repeat penalty of 0 has no meaning and changes nothing."""
        counts: dict[int, int] = {}
        for token in recent[-PENALTY_WINDOW_TOKENS:]:
            counts[token] = counts.get(token, 0) + 1
        ids = np.array([token for token in counts if token not in self._unpenalized], np.intp)
        if not len(ids):
            return
        values = logits[ids]
        if params.repeat_penalty > 0:
            repeat = np.float32(params.repeat_penalty)
            values = np.where(values > 0, values / repeat, values * repeat)
        times = np.array([counts[token] for token in ids.tolist()], np.float32)
        logits[ids] = values - (np.float32(params.presence_penalty) + times * np.float32(params.frequency_penalty))

    def _sample(self, logits: Logits, peak: float, params: SamplingParams, u: float) -> int:
        """Inverse transform over the surviving tokens in the order of their ids."""
        is_cut_by_share = params.top_p < 1.0
        is_cut_by_rank = 0 < params.top_k < self._size
        scale = np.float32(1.0 / max(params.temperature, MINIMUM_TEMPERATURE))
        if is_cut_by_rank and not is_cut_by_share:
            ids = np.sort(leading_tokens(logits, params.top_k))
            weights = _weights(logits[ids], peak, scale)
        else:
            weights = _weights(logits, peak, scale, self._weights)
            ids = self._everything
            if is_cut_by_share:
                ids = _leading_share(logits, weights, params.top_p, params.top_k if is_cut_by_rank else self._size)
                weights = weights[ids]
        if params.min_p > 0:
            kept = weights >= np.float32(params.min_p)
            ids, weights = ids[kept], weights[kept]
        return int(ids[_pick(weights, u)])

    def _score(self, logits: Logits, peak: float, token: int, top_n: int) -> Scores:
        whole = _weights(logits, peak, np.float32(1.0), self._weights)
        normalizer = peak + float(np.log(whole.sum(dtype=np.float64)))
        top = leading_tokens(logits, top_n) if top_n > 0 else self._everything[:0]
        return Scores(
            float(logits[token]) - normalizer, top.tolist(), [float(logit) - normalizer for logit in logits[top]]
        )


def is_penalizing(params: SamplingParams) -> bool:
    """Whether what was drawn before changes what is drawn next."""
    return params.repeat_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0


def is_plainly_greedy(params: SamplingParams) -> bool:
    """Whether the next token is the greatest of the model's own logits, unless that one has a bias: biases only lower
    others."""
    is_greedy = params.temperature <= 0 and not is_penalizing(params)
    return is_greedy and not any(bias > 0 for bias in params.logit_bias.values())


def greatest(logits: Logits) -> list[int | None]:
    """The greatest of each row, all in one pass; ``None`` where that is no finite number."""
    best = logits.argmax(axis=1).tolist()
    # NaN, which argmax takes for the greatest of all, is not below infinity either.
    return [token if -np.inf < row[token] < np.inf else None for token, row in zip(best, logits, strict=True)]


def leading_tokens(logits: Logits, count: int) -> _Ids:
    """The ids of the ``count`` greatest logits, best first, of equal ones the lowest id first.

    Folding the row and taking the greatest of each fold gives a bound that at least ``count`` logits reach; only those
    are sorted. Reading the row twice is several times cheaper than partitioning it.
    """
    size = len(logits)
    columns = size // _FOLD
    if count >= size:
        return _ranked(logits, np.arange(size))
    few = logits[: columns * _FOLD].reshape(_FOLD, columns).max(axis=0) if columns > 2 * count else logits
    bound = np.partition(few, len(few) - count)[len(few) - count]
    return _ranked(logits, np.flatnonzero(logits >= bound))[:count]


def _ranked(logits: Logits, ids: _Ids) -> _Ids:
    """Ascending ``ids``, best first."""
    return ids[np.argsort(-logits[ids], kind="stable")]


def _leading_share(logits: Logits, weights: Logits, share: float, limit: int) -> _Ids:
    """The fewest best tokens that hold ``share`` of the whole weight, at most ``limit`` of them; by ascending id."""
    wanted = share * float(weights.sum())
    ids = leading_tokens(logits, min(limit, _FIRST_GUESS))
    shares = weights[ids].cumsum(dtype=np.float64)
    if shares[-1] < wanted and limit > _FIRST_GUESS:
        if limit >= len(logits):
            return _leading_share_of_many(logits, weights, wanted)
        ids = leading_tokens(logits, limit)
        shares = weights[ids].cumsum(dtype=np.float64)
    return np.sort(ids[: int(shares.searchsorted(wanted)) + 1])


def _leading_share_of_many(logits: Logits, weights: Logits, wanted: float) -> _Ids:
    """For a flat distribution: weights are summed in bins by magnitude, and only the bin in which the sum passes
    ``wanted`` is ranked."""
    with np.errstate(divide="ignore"):
        magnitudes = np.log(weights)
    bins = np.minimum(magnitudes * np.float32(-_BINS_PER_UNIT), np.float32(_BINS - 1)).astype(np.intp)
    sums = np.bincount(bins, weights, minlength=_BINS).cumsum()
    passing = int(sums.searchsorted(wanted))
    kept = bins < passing
    ids = _ranked(logits, np.flatnonzero(bins == passing))
    shares = weights[ids].cumsum(dtype=np.float64) + (sums[passing - 1] if passing else 0.0)
    kept[ids[: int(shares.searchsorted(wanted)) + 1]] = True
    return np.flatnonzero(kept)


def _weights(logits: Logits, peak: float, scale: np.float32, out: Logits | None = None) -> Logits:
    """Unnormalized softmax: the greatest weight is 1."""
    out = np.subtract(logits, np.float32(peak), out=out)
    np.multiply(out, scale, out=out)
    return np.exp(out, out=out)


def _pick(weights: Logits, u: float) -> int:
    """The index at which the running sum passes the share ``u`` of the total. Sums of blocks first: running sums of a
    whole vocabulary would cost more than all the rest. A weight of 0 is never picked."""
    blocks = len(weights) // _BLOCK
    if blocks < 2:
        sums = weights.cumsum(dtype=np.float64)
        return _passing(sums, u * float(sums[-1]))
    whole = weights[: blocks * _BLOCK].reshape(blocks, _BLOCK).sum(axis=1, dtype=np.float64)
    sums = np.append(whole, weights[blocks * _BLOCK :].sum(dtype=np.float64)).cumsum()
    target = u * float(sums[-1])
    block = _passing(sums, target)
    before = float(sums[block - 1]) if block else 0.0
    inside = weights[block * _BLOCK : (block + 1) * _BLOCK].cumsum(dtype=np.float64)
    return block * _BLOCK + _passing(inside, target - before)


def _passing(sums: NDArray[np.float64], target: float) -> int:
    last = np.nextafter(sums[-1], 0.0)
    return int(sums.searchsorted(min(target, last), side="right"))


def _mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _WORD
    return value ^ (value >> 31)
