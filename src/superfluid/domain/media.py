"""Images in a model's input: what a worker says of its encoder, what a record keeps, and where they stand. Pure.

Where an image is, the input holds placeholder tokens. A run of them with no other token in between is evaluated at once
and never in part: what stands there is an image's embedding, and a run can see itself as a whole.
"""

import hashlib
from array import array
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

PLACEHOLDER: Final = -1
"""Stands in an image's layout for the token that the model sees an embedding in place of."""
MAX_PLACEHOLDERS: Final = 4096
"""An image takes no more of the window than this."""


NO_PROJECTOR: Final = "no projector was found beside it; start the server with --mmproj to give it one"


class MediaFacts(Struct, frozen=True, kw_only=True):
    """How a loaded model sees images. ``fingerprint`` (16 hex digits) is that of everything an image's embeddings
    depend on besides its bytes; ``placeholder_token`` is an ordinary token id that no layout contains."""

    encoder: str
    fingerprint: str
    placeholder_token: int


class ImageRun(Struct, frozen=True, array_like=True):
    """Placeholders from ``position`` on in the input: run ``index`` of the image ``blob``, counted from 0."""

    position: int
    length: int
    blob: str
    index: int

    @property
    def end(self) -> int:
        return self.position + self.length


def image_ids(run: ImageRun, fingerprint: str) -> "array[int]":
    """What stands in the token stream for a run: negative ids made from the image, its encoder and the place in it.

    So whatever compares streams, or looks prefixes up, takes two images for equal exactly if they are.
    """
    seed = hashlib.sha256(f"{run.blob}|{fingerprint}|{run.index}".encode()).digest()
    raw = bytearray()
    while len(raw) < 4 * run.length:
        raw += hashlib.sha256(seed + len(raw).to_bytes(8, "little")).digest()
    raw[3::4] = bytes(byte | 0x80 for byte in raw[3::4])
    return array("i", bytes(raw[: 4 * run.length]))


def with_image_ids(tokens: "array[int]", runs: Sequence[ImageRun], fingerprint: str) -> "array[int]":
    """A copy of ``tokens`` with the placeholders of ``runs`` replaced."""
    replaced = tokens[:]
    for run in runs:
        replaced[run.position : run.end] = image_ids(run, fingerprint)
    return replaced


class MediaIdentity(Struct, frozen=True):
    """Whose embeddings these are."""

    preprocessing_fp: str
    encoder: str


class ImagePayload(Struct, frozen=True):
    """The payload of an image block. ``offset`` is where in the session's input the first placeholder is."""

    blob: str
    n_tokens: int
    image_token_id: int
    offset: int
    pre_text: str
    post_text: str
    media_identity: MediaIdentity

    def encode(self) -> str:
        return msgspec.json.encode(self).decode()


def parse_image_payload(payload: str) -> ImagePayload | None:
    """``None`` if it is not one: blocks of that kind can be appended with any payload, but then they show nothing."""
    try:
        return msgspec.json.decode(payload, type=ImagePayload)
    except (msgspec.MsgspecError, RecursionError):
        return None


def named_blobs(payload: str) -> set[str]:
    """The blob that an image block's payload names, if any; also one that shows nothing."""
    try:
        fields = msgspec.json.decode(payload)
    except (msgspec.MsgspecError, RecursionError):
        return set()
    blob = fields.get("blob") if isinstance(fields, dict) else None
    return {blob} if isinstance(blob, str) else set()


def runs_of(tokens: Sequence[int], placeholder: int) -> list[tuple[int, int]]:
    """Start and length of every run of ``placeholder`` in ``tokens``."""
    runs: list[tuple[int, int]] = []
    for index, token in enumerate(tokens):
        if token != placeholder:
            continue
        if runs and sum(runs[-1]) == index:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((index, 1))
    return runs


def image_runs(payload: ImagePayload, span: Sequence[int], start: int) -> list[ImageRun]:
    """The runs of an image block whose ``span`` begins at ``start`` of the input; none if the two do not match."""
    first = payload.offset - start
    if not 0 <= first < len(span):
        return []
    runs: list[ImageRun] = []
    left = payload.n_tokens
    for index, (offset, length) in enumerate(runs_of(span[first:], payload.image_token_id)):
        if left <= 0:
            break
        taken = min(length, left)
        runs.append(ImageRun(payload.offset + offset, taken, payload.blob, index))
        left -= taken
    return [] if left else runs
