from superfluid.cli.session.catalog import Row
from superfluid.cli.session.forest import ASCII_GLYPHS, MAX_HIDDEN_DEPTH, Forest, Glyphs, drawn_lines


def row(session: int, parent: int | None = None, title: str | None = None, *, is_archived: bool = False) -> Row:
    return Row(
        id=session, parent=parent, fork_at=0, title=title, is_archived=is_archived, events=1, tokens=1,
        open_tool_calls=0,
    )  # fmt: skip


def drawing(rows: list[Row], root: int, *, glyphs: Glyphs = ASCII_GLYPHS, is_folded: bool = True, kept: int = 0) -> str:
    lines = drawn_lines(Forest(rows), root, glyphs, is_folded=is_folded, kept=(kept,))
    return "\n".join(f"{line.prefix}{line.text if line.row is None else line.row.id}" for line in lines)


FAMILY = [row(1), row(2, 1), row(3, 1), row(4, 2), row(5, 2), row(9, 3)]


def test_family_is_drawn_with_children_below_their_parents() -> None:
    assert drawing(FAMILY, 1) == "\n".join(["1", "|- 2", "|  |- 4", "|  `- 5", "`- 3", "   `- 9"])


def test_family_is_drawn_with_lines_where_the_terminal_has_them() -> None:
    assert drawing(FAMILY, 1, glyphs=Glyphs()) == "\n".join(["1", "├─ 2", "│  ├─ 4", "│  └─ 5", "└─ 3", "   └─ 9"])


def test_descendants_are_all_below_parents_first() -> None:
    forest = Forest(FAMILY)
    assert forest.descendants(1) == [2, 4, 5, 3, 9]
    assert forest.descendants(9) == []
    assert forest.root_of(5) == 1


def test_families_with_the_newest_member_come_first() -> None:
    assert Forest([row(1), row(2), row(3), row(4, 1)]).newest_roots() == [1, 3, 2]


def test_session_whose_parent_is_gone_begins_a_family() -> None:
    assert Forest([row(7, 3), row(8, 7)]).roots == [7]


CHAIN = [row(1), *(row(n, n - 1) for n in range(2, 8))]


def test_long_row_of_forks_is_folded_to_its_ends() -> None:
    assert drawing(CHAIN, 1) == "1\n:5 forks, each of the one before\n`- 7"


def test_short_row_of_forks_is_drawn() -> None:
    assert drawing(CHAIN[:4], 1) == "1\n`- 2\n   `- 3\n      `- 4"


def test_row_of_forks_is_drawn_if_nothing_is_to_be_folded() -> None:
    assert len(drawing(CHAIN, 1, is_folded=False).splitlines()) == 7


def test_fold_ends_at_a_branch() -> None:
    drawn = drawing([*CHAIN, row(8, 5)], 1)
    assert drawn == "1\n:3 forks, each of the one before\n`- 5\n   |- 6\n   |  `- 7\n   `- 8"


def test_fold_spares_what_has_a_title_is_archived_or_is_asked_for() -> None:
    titled = [row(1), row(2, 1), row(3, 2), row(4, 3), row(5, 4, "here"), row(6, 5)]
    archived = [*titled[:4], row(5, 4, is_archived=True), titled[5]]
    plain = [*titled[:4], row(5, 4), titled[5]]
    expected = "1\n:3 forks, each of the one before\n`- 5\n   `- 6"
    assert drawing(titled, 1) == drawing(archived, 1) == drawing(plain, 1, kept=5) == expected


def test_deep_families_are_not_indented_without_end() -> None:
    deep = [row(1, None, "t"), *(row(n, n - 1, "t") for n in range(2, 3000))]
    lines = drawing(deep, 1).splitlines()
    assert len(lines) == 2999
    assert max(map(len, lines)) == 3 * MAX_HIDDEN_DEPTH + 4
