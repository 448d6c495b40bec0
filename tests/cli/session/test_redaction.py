import pytest

from superfluid.cli.session.redaction import MAX_CONTENT_BYTES, PEM_STUB, redact

OPENAI = "sk-" + "a1B2" * 6
AWS = "AKIA" + "ABCDEFGH12345678"
GITHUB = "ghp_" + "x" * 36
SLACK = "xoxb-" + "1234567890" * 2
GOOGLE = "AIza" + "b" * 35


@pytest.mark.parametrize("secret", [OPENAI, AWS, GITHUB, SLACK, GOOGLE])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", "[REDACTED]"),
        ("use {} now", "use [REDACTED] now"),
        ("use ({}), please", "use [REDACTED] please"),
        ("'{}'", "[REDACTED]"),
        ("first\n{}\nlast", "first\n[REDACTED]\nlast"),
        ("a\t{}  b", "a\t[REDACTED]  b"),
        ('{{"key":"{}"}}', '{{"key":"[REDACTED]"}}'),
        ("KEY={}", "KEY=[REDACTED]"),
    ],
)
def test_credential_is_redacted_wherever_it_stands(secret: str, text: str, expected: str) -> None:
    assert redact(text.format(secret)) == expected.replace("{{", "{").replace("}}", "}")


@pytest.mark.parametrize(
    "text",
    [
        "sk-too-short-to-be-one",
        "AKIAabcdefgh12345678",
        "AKIA" + "A" * 17,
        "ghp_" + "x" * 31,
        "xoxb" + "1" * 30,
        "xoxb-123",
        "AIza" + "b" * 34,
        "AIza" + "b" * 36,
        "a plain  sentence,\nwith\ttabs -- and dashes_and_underscores",
        "",
    ],
)
def test_text_without_a_credential_is_left_as_it_is(text: str) -> None:
    assert redact(text) == text


def test_every_pem_block_is_replaced() -> None:
    block = "-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc==\n-----END RSA PRIVATE KEY-----"
    assert redact(f"one {block} two\n{block}\nthree") == f"one {PEM_STUB} two\n{PEM_STUB}\nthree"


def test_pem_key_that_was_cut_off_is_replaced_to_the_end() -> None:
    assert redact("see\n-----BEGIN PRIVATE KEY-----\nMIIE\nabc") == f"see\n{PEM_STUB}"


def test_stray_end_of_a_pem_key_is_marked() -> None:
    assert redact("MIIE\n-----END PRIVATE KEY-----\nrest") == "MIIE\n-----END PRIVATE KEY-----[REDACTED]\nrest"


def test_long_text_is_cut_between_characters() -> None:
    assert redact("x" * MAX_CONTENT_BYTES) == "x" * MAX_CONTENT_BYTES
    assert redact("x" + "é" * MAX_CONTENT_BYTES) == "x" + "é" * (MAX_CONTENT_BYTES // 2 - 1) + "…[truncated]"
