"""From the file of ``--key-policy`` to the keys. Pure but for the reading.

No message quotes anything that stands in the file, since a secret may have been put in the wrong place: keys are named
by their place in the list.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec

from superfluid.config import PolicyKey, Secret
from superfluid.domain.request import QosClass
from superfluid.domain.scheduling import CLASS_NAMES, parse_class
from superfluid.errors import UsageError

MAX_REQUESTS_PER_MINUTE: Final = 10**9
MAX_CONCURRENT: Final = 10**9
MAX_POLICY_BYTES: Final = 1 << 20
_FLAG: Final = "--key-policy"
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_SECRET: Final = re.compile(r"[!-~]+")


class _Entry(msgspec.Struct, frozen=True):
    """A key as the file has it."""

    name: str
    key: str | None = None
    key_env: str | None = None
    qos: str = msgspec.field(name="class", default=CLASS_NAMES[QosClass.AGENT])
    max_class: str | None = None
    batch_invariant: bool = False
    admin: bool = False
    rate_limit_rpm: int = 0
    max_concurrent: int = 0


_FIELDS: Final = frozenset(field.encode_name for field in msgspec.structs.fields(_Entry))


def read_key_policy(path: Path) -> bytes:
    """The file's bytes. Raises UsageError if it cannot be read or is no such file by its size."""
    try:
        with path.expanduser().open("rb") as file:
            data = file.read(MAX_POLICY_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{_FLAG} {path}: {error.strerror or error}", param=_FLAG) from error
    if len(data) > MAX_POLICY_BYTES:
        _refuse(f"the file is larger than {MAX_POLICY_BYTES} bytes")
    return data


def parse_key_policy(data: bytes, environment: Mapping[str, str], api_key: Secret | None) -> tuple[PolicyKey, ...]:
    """The keys in the file's order. Raises UsageError that says what is wrong and where, and no secret.

    ``api_key`` is the global key, which none of them may be or have for a name.
    """
    document = _decode(data)
    if not isinstance(document, dict) or set(document) != {"keys"} or not isinstance(document["keys"], list):
        _refuse('the file must be {"keys": [...]}, with nothing beside the keys')
    if not document["keys"]:
        _refuse("the list of keys is empty; leave the flag out to serve without a policy")
    keys = tuple(_key(f"keys[{place}]", raw, environment) for place, raw in enumerate(document["keys"]))
    _require_distinct(keys, api_key)
    return keys


def _decode(data: bytes) -> Any:
    try:
        return json.loads(data.decode("utf-8-sig"), object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        _refuse(f"the file is not JSON: line {error.lineno}, column {error.colno}")
    except (ValueError, RecursionError):
        # Not UTF-8, a number of thousands of digits, a thousand brackets.
        _refuse("the file is not JSON that could be a key policy")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        _refuse("a field is given twice in one object")
    return members


def _key(where: str, raw: Any, environment: Mapping[str, str]) -> PolicyKey:
    if not isinstance(raw, dict):
        _refuse(f"{where} must be an object")
    if not set(raw) <= _FIELDS:
        _refuse(f"{where} has a field that there is none of; there are {', '.join(sorted(_FIELDS))}")
    try:
        entry = msgspec.convert(raw, _Entry)
    except msgspec.ValidationError as error:
        # It names types and fields, never values.
        _refuse(f"{where}: {error}")
    if not _NAME.fullmatch(entry.name):
        _refuse(f"{where}.name must be of the letters A to Z, digits, '.', '_' and '-'")
    for field, number, most in (
        ("rate_limit_rpm", entry.rate_limit_rpm, MAX_REQUESTS_PER_MINUTE),
        ("max_concurrent", entry.max_concurrent, MAX_CONCURRENT),
    ):
        if not 0 <= number <= most:
            _refuse(f"{where}.{field} must be between 0 and {most}")
    qos = _class(f"{where}.class", entry.qos)
    best = qos if entry.max_class is None else _class(f"{where}.max_class", entry.max_class)
    if best > qos:
        _refuse(f"{where}.max_class is a worse class than its class")
    return PolicyKey(
        name=entry.name,
        secret=_secret(where, entry, environment),
        qos=qos,
        max_qos=best,
        allows_batch_invariant=entry.batch_invariant,
        is_admin=entry.admin,
        rate_limit_rpm=entry.rate_limit_rpm,
        max_concurrent=entry.max_concurrent,
        variable=entry.key_env,
    )


def _secret(where: str, entry: _Entry, environment: Mapping[str, str]) -> Secret:
    if (entry.key is None) == (entry.key_env is None):
        _refuse(f"{where} must have either key or key_env")
    value, source = entry.key, f"{where}.key"
    if entry.key_env is not None:
        source = f"the variable that {where}.key_env names"
        value = environment.get(entry.key_env)
        if value is None:
            _refuse(f"{source} is not set")
    assert value is not None
    if not _SECRET.fullmatch(value):
        _refuse(f"{source} must be of visible ASCII characters, at least one, without blanks and line ends")
    return Secret(value)


def _class(where: str, text: str) -> QosClass:
    qos = parse_class(text)
    if qos is None:
        _refuse(f"{where} must be one of {', '.join(CLASS_NAMES)}")
    return qos


def _require_distinct(keys: tuple[PolicyKey, ...], api_key: Secret | None) -> None:
    """Names are shown, so none may be a secret; and who asks must be plain from the key."""
    names: set[str] = set()
    secrets = set() if api_key is None else {api_key.reveal().strip()}
    for place, key in enumerate(keys):
        secret = key.secret.reveal()
        if key.name in names:
            _refuse(f"keys[{place}] has the name of a key before it")
        if secret in secrets:
            _refuse(f"keys[{place}] has the secret of a key before it, or of --api-key")
        names.add(key.name)
        secrets.add(secret)
    for place, key in enumerate(keys):
        if key.name in secrets:
            _refuse(f"keys[{place}].name is the secret of a key, and names are shown")


def _refuse(reason: str) -> NoReturn:
    raise UsageError(f"{_FLAG}: {reason}", param=_FLAG)
