import os
import stat
from pathlib import Path

import pytest

from superfluid.config import Secret
from superfluid.errors import StoreError
from superfluid.web.token import mint_token, write_token


def test_minted_token_is_64_lowercase_hex_digits_and_new_every_time() -> None:
    first, second = mint_token().reveal(), mint_token().reveal()
    assert len(first) == 64
    assert set(first) <= set("0123456789abcdef")
    assert first != second


def test_written_token_has_no_newline_and_is_for_the_owner_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        path = write_token(tmp_path / "sessions", Secret("ab12"))
    finally:
        os.umask(before)
    assert path == tmp_path / "sessions" / "web-token"
    assert path.read_bytes() == b"ab12"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["web-token"]


def test_older_token_is_replaced_whatever_its_mode(tmp_path: Path) -> None:
    old = tmp_path / "web-token"
    old.write_text("a much longer text than the new one")
    old.chmod(0o666)
    write_token(tmp_path, Secret("new"))
    assert old.read_text() == "new"
    assert stat.S_IMODE(old.stat().st_mode) == 0o600


def test_link_in_the_tokens_place_is_replaced_and_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("untouched")
    (tmp_path / "web-token").symlink_to(elsewhere)
    write_token(tmp_path, Secret("new"))
    assert elsewhere.read_text() == "untouched"
    assert not (tmp_path / "web-token").is_symlink()


def test_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="web token"):
        write_token(tmp_path / "file", Secret("x"))


def test_failed_write_leaves_no_draft(tmp_path: Path) -> None:
    (tmp_path / "web-token").mkdir()
    with pytest.raises(StoreError):
        write_token(tmp_path, Secret("x"))
    assert [entry.name for entry in tmp_path.iterdir()] == ["web-token"]
