import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.fixtures.command_line import clean_environment

from superfluid.cli.terminal import age_text

NOW = 1_700_000_000_000
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


@pytest.mark.parametrize(
    ("ago", "text"),
    [
        (-5000, "just now"),
        (0, "just now"),
        (MINUTE - 1, "just now"),
        (MINUTE, "1 min ago"),
        (HOUR - 1, "59 min ago"),
        (HOUR, "1 h ago"),
        (DAY - 1, "23 h ago"),
        (DAY, "1 d ago"),
        (31 * DAY - 1, "30 d ago"),
    ],
)
def test_age_is_in_one_unit(ago: int, text: str) -> None:
    assert age_text(NOW, NOW - ago) == text


def test_age_over_a_month_is_a_date() -> None:
    assert age_text(NOW, NOW - 40 * DAY) == time.strftime("%Y-%m-%d", time.localtime((NOW - 40 * DAY) / 1000))


@pytest.mark.parametrize("then", [None, 0])
def test_age_of_what_has_no_time_is_a_dash(then: int | None) -> None:
    assert age_text(NOW, then) == "-"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_stream_becomes_the_null_device(closed: str, tmp_path: Path) -> None:
    report = (
        "import os; from superfluid.cli.main import main; code = main(['version']);"
        "files = [os.open('seen', os.O_CREAT | os.O_WRONLY)];"
        "os.write(files[0], repr((code, min(files) > 2, [os.get_inheritable(n) for n in (0, 1, 2)])).encode())"
    )
    subprocess.run(
        ["sh", "-c", f"exec {shlex.quote(sys.executable)} -c {shlex.quote(report)} {closed}"],
        env=clean_environment(tmp_path), cwd=tmp_path, check=True,
    )  # fmt: skip
    assert (tmp_path / "seen").read_text() == "(0, True, [True, True, True])"
