"""What the scripted engine says: which reply fits, how it goes on, and how a script file is read."""

from pathlib import Path

import pytest

from superfluid.engine.fake_script import FakeScript, ScriptedReply, ScriptReader, load_script
from superfluid.engine.fake_vocabulary import END_OF_GENERATION, SPECIAL_IDS, encode_with_markers, piece
from superfluid.errors import ModelFileError

CHAT = "<|im_start|>user\nhow is the weather<|im_end|>\n<|im_start|>assistant\n"


def _say(script: FakeScript, prompt: str, limit: int = 64) -> str:
    reader, tokens = ScriptReader(script), encode_with_markers(prompt)
    start = len(tokens)
    while len(tokens) - start < limit:
        token = reader.next_token(tokens)
        if token is None:
            return "babble"
        tokens.append(token)
        if token in END_OF_GENERATION:
            break
    return b"".join(map(piece, tokens[start:])).decode()


def _script(*replies: tuple[str | None, str | None]) -> FakeScript:
    return FakeScript(replies=tuple(ScriptedReply(when=when, text=text) for when, text in replies))


def test_reply_first_fitting_is_said_and_ended() -> None:
    assert _say(_script(("snow", "no"), ("weather", "rain"), (None, "other")), CHAT) == "rain<|im_end|>"


def test_reply_only_the_last_user_turn_on_counts() -> None:
    earlier = "<|im_start|>user\nsnow<|im_end|>\n<|im_start|>assistant\nno<|im_end|>\n"
    assert _say(_script(("snow", "no"), (None, "other")), earlier + CHAT) == "other<|im_end|>"


def test_reply_a_tool_result_behind_the_user_turn_counts() -> None:
    tool = "<tool_call>{}</tool_call><|im_end|>\n<|im_start|>tool\n<tool_response>12</tool_response><|im_end|>\n"
    script = _script(("<tool_response>", "12 degrees"), ("weather", "<tool_call>{}</tool_call>"))
    assert _say(script, CHAT) == "<tool_call>{}</tool_call><|im_end|>"
    assert _say(script, CHAT + tool + "<|im_start|>assistant\n") == "12 degrees<|im_end|>"


def test_reply_markers_in_the_text_become_their_tokens() -> None:
    reader = ScriptReader(_script((None, "<think>x")))
    assert reader.next_token(encode_with_markers(CHAT)) == SPECIAL_IDS["<think>"]


def test_reply_cut_anywhere_goes_on_where_it_stood() -> None:
    script = _script((None, "a<think>b</think>c"))
    whole = _say(script, CHAT)
    for said in range(len(whole) - len("<|im_end|>")):
        if whole[:said].count("<") == whole[:said].count(">"):
            assert _say(script, CHAT + whole[:said]) == whole[said:]


def test_raw_prompt_reply_goes_on_behind_the_longest_overlap() -> None:
    script = _script(("once", "upon a time"))
    assert _say(script, "once ") == "upon a time<|im_end|>"
    assert _say(script, "once upon a") == " time<|im_end|>"


def test_babble_tokens_end_the_turn() -> None:
    reader = ScriptReader(FakeScript(babble_tokens=2))
    tokens = encode_with_markers(CHAT)
    assert reader.next_token([*tokens, 65]) is None
    assert reader.next_token([*tokens, 65, 66]) == SPECIAL_IDS["<|im_end|>"]


def test_script_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    path.write_text('{"replies": [{"when": "weather", "text": "rain"}], "step_seconds": 0.5}')
    script = load_script(path)
    assert script.step_seconds == 0.5
    assert _say(script, CHAT) == "rain<|im_end|>"


@pytest.mark.parametrize("content", ["", "[]", '{"replys": []}', '{"step_seconds": "x"}'])
def test_script_file_damaged_is_refused_by_name(tmp_path: Path, content: str) -> None:
    path = tmp_path / "script.json"
    path.write_text(content)
    with pytest.raises(ModelFileError, match=r"script\.json"):
        load_script(path)


def test_script_file_missing_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="absent"):
        load_script(tmp_path / "absent")
