"""The file of ``--key-policy``: what it may say, and that no refusal shows a secret."""

import json
from pathlib import Path
from typing import Any

import pytest

from superfluid.cli.key_policy import MAX_POLICY_BYTES, parse_key_policy, read_key_policy
from superfluid.cli.serve_settings import ServeFlags, build_serve_config
from superfluid.config import PolicyKey, Secret
from superfluid.domain.request import QosClass
from superfluid.errors import UsageError

ENVIRONMENT = {"BOB_KEY": "from-env", "EMPTY": "", "LINE": "ends\n"}
GLOBAL = Secret("hunter-global")


def parsed(*keys: dict[str, Any]) -> tuple[PolicyKey, ...]:
    return parse_key_policy(json.dumps({"keys": keys}).encode(), ENVIRONMENT, GLOBAL)


def refusal(data: bytes) -> str:
    with pytest.raises(UsageError) as failure:
        parse_key_policy(data, ENVIRONMENT, GLOBAL)
    assert failure.value.param == "--key-policy"
    return failure.value.message


def test_key_that_says_nothing_more_is_an_agent_without_limits_and_rights() -> None:
    assert parsed({"name": "ci", "key": "k"}) == (PolicyKey(name="ci", secret=Secret("k")),)


def test_key_that_says_everything() -> None:
    key = {"name": "A.b_c-1", "key_env": "BOB_KEY", "class": "background", "max_class": "interactive_chat"}
    (read,) = parsed({**key, "batch_invariant": True, "admin": True, "rate_limit_rpm": 60, "max_concurrent": 2})
    assert read == PolicyKey(
        name="A.b_c-1",
        secret=Secret("from-env"),
        qos=QosClass.BACKGROUND,
        max_qos=QosClass.INTERACTIVE,
        allows_batch_invariant=True,
        is_admin=True,
        rate_limit_rpm=60,
        max_concurrent=2,
        variable="BOB_KEY",
    )


def test_best_class_is_the_keys_class_unless_it_is_given() -> None:
    (key,) = parsed({"name": "a", "key": "k", "class": "background"})
    assert (key.qos, key.max_qos) == (QosClass.BACKGROUND, QosClass.BACKGROUND)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"name": "a b"}, "keys[0].name"),
        ({"name": ""}, "keys[0].name"),
        ({"name": "ä"}, "keys[0].name"),
        ({"name": "a\n"}, "keys[0].name"),
        ({"name": 1}, "keys[0]: Expected `str`"),
        ({"name": "hunter2"}, "names are shown"),
        ({"name": "hunter-global"}, "names are shown"),
        ({"key": "hunter-global"}, "--api-key"),
        ({"key": "hunter 2"}, "keys[0].key"),
        ({"key": ""}, "keys[0].key"),
        ({"key": "hünter"}, "keys[0].key"),
        ({"key": None}, "either key or key_env"),
        ({"key_env": "BOB_KEY"}, "either key or key_env"),
        ({"key": None, "key_env": "NOBODY"}, "is not set"),
        ({"key": None, "key_env": "EMPTY"}, "at least one"),
        ({"key": None, "key_env": "LINE"}, "line ends"),
        ({"class": "hunter2"}, "keys[0].class must be one of interactive,"),
        ({"max_class": ""}, "keys[0].max_class must be one of"),
        ({"class": "agent", "max_class": "background"}, "worse class"),
        ({"class": 2}, "Expected `str`"),
        ({"admin": 1}, "Expected `bool`"),
        ({"batch_invariant": "yes"}, "Expected `bool`"),
        ({"rate_limit_rpm": -1}, "keys[0].rate_limit_rpm"),
        ({"rate_limit_rpm": True}, "Expected `int`"),
        ({"max_concurrent": 1.5}, "Expected `int`"),
        ({"max_concurrent": 10**30}, "max_concurrent"),
        ({"hunter2": "name"}, "a field that there is none of"),
    ],
)
def test_key_that_breaks_a_rule_is_refused_with_its_place_and_without_its_secret(
    change: dict[str, Any], reason: str
) -> None:
    key = {"name": "a", "key": "hunter2", **change}
    message = refusal(json.dumps({"keys": [key]}).encode())
    assert reason in message
    assert not any(secret in message for secret in ("hunter", "hünter", "from-env"))


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        ({"name": "a", "key": "other"}, "keys[1] has the name"),
        ({"name": "b", "key": "hunter2"}, "keys[1] has the secret"),
        ({"name": "hunter2", "key": "other"}, "keys[1].name is the secret"),
        ({"name": "b", "key": "a"}, "keys[0].name is the secret"),
    ],
)
def test_keys_that_cannot_be_told_apart_are_refused(second: dict[str, Any], reason: str) -> None:
    message = refusal(json.dumps({"keys": [{"name": "a", "key": "hunter2"}, second]}).encode())
    assert reason in message
    assert "hunter" not in message


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hunter2",
        b"\xff",
        b"[]",
        b"{}",
        b"null",
        b'{"keys": {"hunter2": {}}}',
        b'{"keys": []}',
        b'{"keys": ["hunter2"]}',
        b'{"keys": [], "hunter2": 1}',
        b'{"keys": [{"name": "a", "key": "hunter2", "key": "k"}]}',
        b'{"keys": [{"name": "a", "key": "\\hunter2"}]}',
        b'{"keys": [{"name": "a", "key": "hunter2" "b"}]}',
        b'{"keys": %s}' % (b"[" * 100_000),
        b'{"keys": [{"name": "a", "key": "hunter2", "max_concurrent": %s}]}' % (b"9" * 5000),
    ],
    ids=range(15),
)
def test_file_that_is_no_policy_is_refused_and_not_quoted(data: bytes) -> None:
    assert "hunter" not in refusal(data)


def test_reading_says_why_a_file_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_key_policy(tmp_path / "missing.json")
    large = tmp_path / "large.json"
    large.write_bytes(b" " * (MAX_POLICY_BYTES + 1))
    with pytest.raises(UsageError, match="larger than"):
        read_key_policy(large)


def test_flags_put_the_policy_and_the_rate_into_the_configuration() -> None:
    flags = ServeFlags(api_key="global", key_policy=Path("keys.json"), rate_limit_rpm=30)
    policy = b'\xef\xbb\xbf{"keys": [{"name": "a", "key": "k"}]}'
    config = build_serve_config(flags, {"HOME": "/h"}, cores=1, note=lambda _: None, key_policy=policy).http
    assert config.key_policy == (PolicyKey(name="a", secret=Secret("k")),)
    assert config.rate_limit_rpm == 30
    assert "k'" not in repr(config)


def test_rate_below_zero_is_refused() -> None:
    with pytest.raises(UsageError, match="--rate-limit"):
        build_serve_config(ServeFlags(rate_limit_rpm=-1), {"HOME": "/h"}, cores=1, note=lambda _: None)
