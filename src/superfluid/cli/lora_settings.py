"""From ``--lora`` to names and files. Pure."""

from collections.abc import Sequence
from pathlib import Path

from superfluid.domain.adapter import checked_adapter_name
from superfluid.errors import InvalidValueError, UsageError


def lora_settings(values: Sequence[str]) -> tuple[tuple[str, Path], ...]:
    """``NAME=PATH``, or a path alone, whose file then gives the name. Raises UsageError."""
    loras = [_lora(value) for value in values]
    names = [name for name, _ in loras]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"--lora names two adapters {twice!r}", param="--lora")
    return tuple(loras)


def _lora(value: str) -> tuple[str, Path]:
    name, is_named, path = value.partition("=")
    if not is_named or "/" in name:
        name, path = Path(value).stem, value
    if not path:
        raise UsageError(f"--lora {value!r} names no file", param="--lora")
    try:
        return checked_adapter_name(name), Path(path).expanduser()
    except InvalidValueError as error:
        raise UsageError(f"--lora {value}: {error.message}", param="--lora") from error
