"""What the model is shown of a block, and the request that appends one."""

import json

import pytest
from tests.fixtures.session_core import END, PARAMS, USER, SessionCore, text_with_template, tokens_of

from superfluid.domain.events import Block, BlockKind
from superfluid.errors import SessionRefusedError, UnsupportedInputError
from superfluid.sessions.blocks import BODY_BYTES, block_text


def shown(kind: BlockKind, **fields: object) -> str:
    return block_text(kind, json.dumps(fields))


@pytest.mark.parametrize("diff", ["-a\n+b", "-a\n+b\n"])
def test_diff_is_fenced_and_names_its_file(diff: str) -> None:
    assert shown(BlockKind.FILE_DIFF, path="a.py", diff=diff) == "```diff\n# a.py\n-a\n+b\n```"


def test_artifact_has_its_title_in_a_line_before_it() -> None:
    assert shown(BlockKind.ARTIFACT, title="Plan", content="1.\n2.") == "[artifact: Plan]\n1.\n2."


def test_citation_has_its_quote_in_a_line_of_its_own_if_there_is_one() -> None:
    assert shown(BlockKind.CITATION, title="T", url="http://x", quote="q") == "[citation] T — http://x\n> q"
    assert shown(BlockKind.CITATION, title="T", url="http://x", quote="") == "[citation] T — http://x"
    assert shown(BlockKind.CITATION, title="T", url="http://x") == "[citation] T — http://x"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"path": "a.c", "line": 7}, "[diagnostic error] a.c:7: bad"),
        ({"path": "a.c", "line": "7"}, "[diagnostic error] a.c:7: bad"),
        ({"path": "a.c"}, "[diagnostic error] a.c: bad"),
        ({"path": "a.c", "line": True}, "[diagnostic error] a.c: bad"),
        ({"line": 7}, "[diagnostic error] bad"),
    ],
)
def test_diagnostic_says_where_if_there_is_a_path(fields: dict[str, object], text: str) -> None:
    assert shown(BlockKind.DIAGNOSTIC, severity="error", message="bad", **fields) == text


def test_workspace_reference_is_its_path() -> None:
    assert shown(BlockKind.WORKSPACE_REF, path="src/a.py") == "@src/a.py"


@pytest.mark.parametrize("kind", [BlockKind.PROGRESS, BlockKind.IMAGE])
def test_progress_and_images_are_not_shown(kind: BlockKind) -> None:
    assert shown(kind, path="a", title="b", content="c", message="d") == ""


@pytest.mark.parametrize(
    "payload", ["", "{", "[1]", "7", "null", '"x"', "[" * 100_000, '{"path":1,"title":null}', "{}"]
)
def test_payload_without_the_fields_has_empty_ones(payload: str) -> None:
    assert block_text(BlockKind.WORKSPACE_REF, payload) == "@"
    assert block_text(BlockKind.ARTIFACT, payload) == "[artifact: ]\n"


@pytest.mark.parametrize(("kind", "name"), [(BlockKind.FILE_DIFF, "diff"), (BlockKind.ARTIFACT, "content")])
def test_long_body_is_cut_on_a_character_and_says_so(kind: BlockKind, name: str) -> None:
    fits = "x" * BODY_BYTES
    assert fits in shown(kind, **{name: fits})
    assert "truncated" not in shown(kind, **{name: fits})
    text = shown(kind, **{name: "x" * (BODY_BYTES - 1) + "é" + "y"})
    assert "x" * (BODY_BYTES - 1) + "\n…[truncated]" in text
    assert "é" not in text
    assert text.endswith("\n```") == (kind is BlockKind.FILE_DIFF)


# ---- AppendBlock


@pytest.mark.parametrize(("role", "name"), [(0, "system"), (1, "user"), (2, "assistant"), (3, "tool")])
async def test_block_is_shown_as_one_turn_of_its_role(core: SessionCore, role: int, name: str) -> None:
    session = await core.chat()
    event = await core.sessions.append_block(session, role, 6, '{"path":"a.py"}')
    span = tokens_of(f"<|im_start|>{name}\n@a.py{END}\n")
    assert event.body == Block(role, 6, '{"path":"a.py"}', span, 2)
    assert (await core.sessions.inspect(session)).state.tokens.tolist()[-len(span) :] == list(span)


async def test_block_behind_a_finished_reply_has_the_separator_before_it(core: SessionCore) -> None:
    session = await core.chat()
    await core.replied(session, "yes")
    event = await core.sessions.append_block(session, USER, 6, '{"path":"a"}')
    assert isinstance(event.body, Block)
    assert event.body.span == tokens_of(f"\n<|im_start|>user\n@a{END}\n")


@pytest.mark.parametrize("kind", [4, 7])
async def test_block_that_is_not_shown_adds_nothing_and_leaves_the_turn_as_it_is(core: SessionCore, kind: int) -> None:
    session = await core.chat()
    await core.replied(session, "yes")
    before = (await core.sessions.inspect(session)).state
    assert (await core.sessions.append_block(session, USER, kind, "{}")).body == Block(1, kind, "{}", (), 2)
    after = (await core.sessions.inspect(session)).state
    assert (after.tokens, after.last_turn) == (before.tokens, before.last_turn)


async def test_generation_goes_on_behind_a_block_without_a_header(core: SessionCore) -> None:
    session = await core.chat()
    await core.sessions.append_block(session, USER, 6, '{"path":"a"}')
    tokens = (await core.sessions.inspect(session)).state.tokens.tolist()
    await core.replied(session, "ok")
    assert core.backend.last.tokens[: len(tokens)] == tokens
    assert "GenerationPrompt" not in await core.kinds(session)


@pytest.mark.parametrize(
    ("role", "kind", "message"),
    [(4, 9, "role 4"), (2**32 - 1, 1, "role 4294967295"), (1, 0, "block kind 0"), (1, 8, "block kind 8")],
)
async def test_block_of_an_unknown_role_or_kind_is_refused(
    core: SessionCore, role: int, kind: int, message: str
) -> None:
    session = await core.chat()
    with pytest.raises(SessionRefusedError, match=message):
        await core.sessions.append_block(session, role, kind, "{}")
    assert await core.kinds(session) == ["Created", "Message"]


async def test_block_that_is_shown_needs_a_chat_template_and_others_do_not(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    core = SessionCore(tmp_path_factory.mktemp("b") / "s.db", text=text_with_template(None))
    session = await core.sessions.create(None, PARAMS)
    with pytest.raises(UnsupportedInputError, match="chat template"):
        await core.sessions.append_block(session, USER, 6, "{}")
    assert (await core.sessions.append_block(session, USER, 4, "{}")).event_id == 1
    await core.close()


async def test_forks_and_rebases_count_the_blocks_they_inherit(core: SessionCore) -> None:
    session = await core.chat()
    await core.sessions.append_block(session, USER, 6, '{"path":"a"}')
    await core.sessions.append_message(session, USER, "b")
    tokens = (await core.sessions.inspect(session)).state.tokens
    fork = await core.sessions.fork(session, 4, None)
    assert (await core.sessions.inspect(fork)).state.tokens == tokens
    trimmed = await core.sessions.trim(session, 3)
    trimmed_tokens = (await core.sessions.inspect(trimmed)).state.tokens
    assert trimmed_tokens == tokens[: len(trimmed_tokens)]
    shown = list(tokens_of(f"@a{END}\n"))
    assert trimmed_tokens.tolist()[-len(shown) :] == shown
