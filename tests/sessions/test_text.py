"""The fingerprint, and the parts of the turn codec that are rendered once."""

from tests.fixtures.session_core import fake_text, text_with_template

from superfluid.domain.events import TurnRole


def test_fingerprint_is_the_same_for_the_same_text_and_fits_64_bits() -> None:
    first = text_with_template(None).fingerprint
    assert first == text_with_template(None).fingerprint
    assert first != fake_text().fingerprint
    assert 0 <= first < 2**64


def test_remembered_parts_are_those_of_the_codec() -> None:
    text = text_with_template(
        "{%- if messages[0].role != 'system' %}{{ '<|im_start|>system\nBe nice.<|im_end|>\n' }}{%- endif %}"
        "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endfor %}"
        "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"
    )
    remembered, plain = text.turns, text.turns._turns  # type: ignore[attr-defined]
    assert (remembered.opener(), remembered.separator()) == (plain.opener(), plain.separator())
    assert [remembered.prologue(role) for role in TurnRole] == [plain.prologue(role) for role in TurnRole]
    assert remembered.prologue(TurnRole.USER) != remembered.prologue(TurnRole.SYSTEM)
    assert remembered.identity == plain.identity
