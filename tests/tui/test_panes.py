import pytest
from msgspec.structs import replace
from tests.tui.test_monitor import HELLO, busy_sample

from superfluid.tui.panes import header, log_lines
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


def test_header_of_a_draining_server_says_on_80_columns_what_the_next_q_does() -> None:
    state = MonitorState()
    state.take_hello(replace(HELLO, model="SmolLM2-135M-Instruct.Q4_1"))
    state.take_sample(busy_sample(is_draining=True))
    assert header(state, 80, 0)[0].plain.endswith("DRAINING, q again stops at once")
