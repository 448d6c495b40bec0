"""Pages lose what lies in the room that means nothing, and nothing else."""

from pathlib import Path

import apsw
import pytest

from superfluid.store.page import cleaned_page

PAGE = 4096


def page(kind: int, *, cells: int, content: int, head: int = 0) -> bytes:
    """A page full of 0xAA but for its header."""
    data = bytearray(b"\xaa" * PAGE)
    data[head] = kind
    data[head + 3 : head + 5] = cells.to_bytes(2, "big")
    data[head + 5 : head + 7] = (content % 65_536).to_bytes(2, "big")
    return bytes(data)


@pytest.mark.parametrize(("kind", "header"), [(2, 12), (5, 12), (10, 8), (13, 8)])
def test_room_between_the_list_of_cells_and_the_cells_is_zeroed(kind: int, header: int) -> None:
    data = page(kind, cells=10, content=3000)
    start = header + 20
    assert cleaned_page(data, is_first=False) == data[:start] + bytes(3000 - start) + data[3000:]


def test_first_page_has_the_files_header_before_its_own() -> None:
    data = page(13, cells=1, content=4000, head=100)
    assert cleaned_page(data, is_first=True) == data[:110] + bytes(4000 - 110) + data[4000:]


def test_clean_page_is_left_alone() -> None:
    cleaned = cleaned_page(page(13, cells=3, content=500), is_first=False)
    assert cleaned is not None
    assert cleaned_page(cleaned, is_first=False) is None


@pytest.mark.parametrize(
    "data",
    [
        page(0, cells=1, content=500),
        page(1, cells=1, content=500),
        page(13, cells=60_000, content=500),
        page(13, cells=246, content=500),
        page(13, cells=1, content=5000),
    ],
    ids=["overflow", "no b-tree", "cells beyond the page", "full", "content beyond the page"],
)
def test_page_without_such_room_is_left_alone(data: bytes) -> None:
    assert cleaned_page(data, is_first=False) is None


def test_database_whose_pages_were_all_cleaned_is_the_same_database(tmp_path: Path) -> None:
    path = tmp_path / "some.db"
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA synchronous = OFF; CREATE TABLE a (x INTEGER PRIMARY KEY, y BLOB)")
    connection.execute("CREATE TABLE b (y BLOB PRIMARY KEY) WITHOUT ROWID")
    for number in range(300):
        connection.execute("INSERT INTO a (y) VALUES (?)", (b"%d" % number * (1 + number % 50),))
        connection.execute("INSERT INTO b VALUES (?)", (b"%d " % (number * 7919 % 300) * (1 + number * 7 % 90),))
    connection.execute("DELETE FROM a WHERE x % 3; DELETE FROM b WHERE length(y) > 100")
    rows = connection.execute("SELECT y FROM a UNION ALL SELECT y FROM b").fetchall()
    connection.close()
    data = path.read_bytes()
    pages = [data[start : start + PAGE] for start in range(0, len(data), PAGE)]
    cleaned = [cleaned_page(one, is_first=number == 0) for number, one in enumerate(pages)]
    assert any(one is not None for one in cleaned)
    path.write_bytes(b"".join(one or old for one, old in zip(cleaned, pages, strict=True)))
    again = apsw.Connection(str(path))
    assert again.execute("PRAGMA integrity_check").get == "ok"
    assert again.execute("SELECT y FROM a UNION ALL SELECT y FROM b").fetchall() == rows
    again.close()
