"""What SQLite leaves behind in a page although ``secure_delete`` is on, and the page without it. Pure.

Deleted records are overwritten where they are. But when SQLite divides the records of neighbouring pages anew, it may
lay out a page from scratch, and leaves the old bytes of records that have moved in the room between the page's list of
cells and the cells themselves. The file format says that this room means nothing. See section 1.6 (b-tree pages) of
https://www.sqlite.org/fileformat2.html.
"""

# Type byte of a page to the bytes of its header: interior and leaf pages of indexes and of tables.
_HEADER_BYTES = {2: 12, 5: 12, 10: 8, 13: 8}
_FILE_HEADER_BYTES = 100
# Pages that are no b-tree begin with the number of another page, whose first byte could pass for a type in a file twice
# as large as this.
MAX_FILE_BYTES = 1 << 36


def cleaned_page(page: bytes, *, is_first: bool) -> bytes | None:
    """``page`` with zeros where it holds nothing, or ``None`` if that changes nothing. ``is_first`` is for the first
    of the file, which has a header of its own."""
    head = _FILE_HEADER_BYTES if is_first else 0
    header_bytes = _HEADER_BYTES.get(page[head])
    if header_bytes is None:
        return None
    cells = int.from_bytes(page[head + 3 : head + 5], "big")
    # 0 stands for 65,536.
    end = int.from_bytes(page[head + 5 : head + 7], "big") or 65_536
    start = head + header_bytes + 2 * cells
    if not start < end <= len(page) or page.count(0, start, end) == end - start:
        return None
    return b"".join((page[:start], bytes(end - start), page[end:]))
