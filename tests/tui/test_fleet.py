import pytest

from superfluid.tui.fleet import SORTS, Answer, Fleet, Node, NodeState, NodeView, ordered


def page(tokens: int, *, used: int = 5, total: int = 10, lanes: int = 2, queued: int = 1, host: str = "box") -> str:
    return (
        f"superfluid_decode_tokens_total {tokens}\n"
        f"superfluid_lanes_active {lanes}\n"
        f"superfluid_pool_blocks_used {used}\nsuperfluid_pool_blocks_total {total}\n"
        f'superfluid_queue_depth{{class="interactive_chat"}} {queued}\n'
        f'superfluid_queue_depth{{class="background_agent"}} {queued}\n'
        f'superfluid_node_info{{host="{host}"}} 1\n'
    )


def test_node_that_answers_shows_its_host_pool_lanes_and_queue() -> None:
    view = Node("a:1").take(Answer(1.0, 200, page(100)))
    assert view == NodeView("a:1", "box", NodeState.UP, 0.5, 0.0, 2, 2)


def test_rate_is_what_was_generated_since_the_last_answer() -> None:
    node = Node("a:1")
    node.take(Answer(1.0, 200, page(100)))
    assert node.take(Answer(3.0, 200, page(150))).tokens_per_second == 25.0


def test_rate_after_an_outage_spans_it() -> None:
    node = Node("a:1")
    node.take(Answer(1.0, 200, page(100)))
    assert node.take(Answer(2.0, None)).tokens_per_second == 0.0
    assert node.take(Answer(5.0, 200, page(180))).tokens_per_second == 20.0


def test_node_that_started_again_has_no_negative_rate() -> None:
    node = Node("a:1")
    node.take(Answer(1.0, 200, page(100)))
    assert node.take(Answer(2.0, 200, page(3))).tokens_per_second == 0.0


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (Answer(1.0, 401, "no"), NodeState.LOCKED),
        (Answer(1.0, None), NodeState.DOWN),
        (Answer(1.0, 500, page(1)), NodeState.DOWN),
        (Answer(1.0, 200, "<html>"), NodeState.DOWN),
        (Answer(1.0, 200, "other_total 1"), NodeState.DOWN),
    ],
)
def test_node_that_does_not_answer_as_it_should_keeps_its_name_and_loses_its_numbers(
    answer: Answer, state: NodeState
) -> None:
    node = Node("a:1")
    node.take(Answer(0.0, 200, page(100)))
    assert node.take(answer) == NodeView("a:1", "box", state)


def test_pool_of_no_size_has_no_share() -> None:
    assert Node("a:1").take(Answer(1.0, 200, page(1, total=0))).kv_share is None


def test_fleet_counts_reachable_and_locked_nodes_and_sums_their_rates() -> None:
    fleet = Fleet(["a:1", "b:1", "c:1", "a:1"])
    first, second, third = fleet.nodes
    for at, tokens in ((0.0, 0), (1.0, 30)):
        first.take(Answer(at, 200, page(tokens)))
    second.take(Answer(1.0, 401))
    third.take(Answer(1.0, None))
    fleet.sample()
    summary = fleet.summary()
    assert (summary.nodes, summary.reachable, summary.locked, summary.tokens_per_second) == (3, 2, 1, 30.0)
    assert list(fleet.history) == [30.0]


def views() -> list[NodeView]:
    return [
        NodeView("z:1", "beta", NodeState.UP, 0.9, 5.0, 1, 0),
        NodeView("y:1", "alpha", NodeState.UP, 0.1, 9.0, 0, 7),
        NodeView("x:1", None, NodeState.UP, None, 0.0, 3, 1),
    ]


@pytest.mark.parametrize(
    ("by", "order"),
    [("order", "zyx"), ("node", "yzx"), ("tok/s", "yzx"), ("lanes", "xzy"), ("queue", "yxz"), ("kv", "zyx")],
)
def test_rows_are_sorted_busiest_first(by: str, order: str) -> None:
    assert by in SORTS
    assert [view.address[0] for view in ordered(views(), by, "")] == list(order)


@pytest.mark.parametrize(("text", "shown"), [("ALPHA", "y"), (":1", "zyx"), ("x:", "x"), ("nobody", "")])
def test_filter_looks_at_names_and_addresses(text: str, shown: str) -> None:
    assert [view.address[0] for view in ordered(views(), "order", text)] == list(shown)
