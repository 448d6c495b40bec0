import pytest
from tests.tui.test_monitor import HELLO

from superfluid.tui.panes import log_lines
from superfluid.tui.protocol import LogLine
from superfluid.tui.state import MonitorState

LINE = "17:23:38  INFO <-- 200 POST /v1/chat/completions model=tiny-model prompt=34 cached=32 completion=12"


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (120, LINE),
        (90, LINE.replace("model=tiny-model ", "")),
        (40, "17:23:38  INFO <-- 200 POST /v1/chat/co…"),
    ],
)
def test_log_line_that_is_too_long_leaves_out_the_model_first(width: int, shown: str) -> None:
    state = MonitorState()
    state.take_hello(HELLO)
    state.take_log(LogLine("INFO", LINE))
    assert log_lines(state, width, 1)[0].plain == shown
