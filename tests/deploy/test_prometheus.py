"""What operators are given, checked with the tools that read it: rules, dashboard, and the page itself."""

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.live_daemon import GREEDY, LiveDaemon
from tests.fixtures.prometheus import Prometheus, promtool

from superfluid.native import requests, responses

DEPLOY = Path(__file__).resolve().parent.parent.parent / "deploy"
RULES = DEPLOY / "prometheus" / "superfluid.rules.yml"
DASHBOARD = json.loads((DEPLOY / "grafana" / "superfluid.json").read_text())
# Names that dashboards of users know. They end like a counter's and count what there is.
KNOWN_COMPLAINTS = ("superfluid_pool_blocks_total", "superfluid_fim_satellite_pool_blocks_total")
GRAFANA_VALUES = {"$job": ".*", "$instance": ".*", "$__rate_interval": "5s"}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    with LiveDaemon(tmp_path_factory.mktemp("home"), None) as running:
        generate(running)
        yield running


def generate(running: LiveDaemon) -> None:
    with running.client() as client:
        created = client.ask(requests.Create(None, GREEDY))
        assert isinstance(created, responses.Created)
        client.ask(requests.AppendMessage(created.session, 1, "hello"))
        assert list(client.stream(created.session, 20))


@pytest.fixture(scope="module")
def prometheus(daemon: LiveDaemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    target = f"127.0.0.1:{daemon.http_port}"
    with Prometheus(tmp_path_factory.mktemp("prometheus"), target, RULES) as running:
        running.wait_for("increase(superfluid_ticks_total[5s])")
        yield running


def page(daemon: LiveDaemon) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{daemon.http_port}/metrics", timeout=10) as response:
        body: bytes = response.read()
    return body


def expressions() -> list[tuple[str, str]]:
    """Every query of the dashboard, with its panel's title."""
    found = [(panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel["targets"]]
    assert len(found) > 20
    return found


def test_page_is_clean_but_for_the_names_that_users_know(daemon: LiveDaemon) -> None:
    checked = promtool("check", "metrics", given=page(daemon))
    complaints = [line for line in (checked.stdout + checked.stderr).decode().splitlines() if line.strip()]
    assert [line for line in complaints if not line.startswith(KNOWN_COMPLAINTS)] == []
    assert complaints


def test_rules_and_configuration_are_valid() -> None:
    for arguments in (("check", "rules", str(RULES)), ("check", "config", str(DEPLOY / "prometheus/prometheus.yml"))):
        checked = promtool(*arguments)
        assert checked.returncode == 0, checked.stdout + checked.stderr


def test_scrape_arrives_whole(daemon: LiveDaemon, prometheus: Prometheus) -> None:
    names = set(prometheus.get("label/__name__/values"))
    series = {line.split("{")[0].split(" ")[0] for line in page(daemon).decode().splitlines() if line[0] != "#"}
    assert series - names == set()
    assert int(prometheus.query("superfluid_decode_tokens_total")[0]["value"][1]) >= 20


@pytest.mark.parametrize(("title", "expression"), expressions())
def test_dashboard_query_runs_and_asks_for_series_that_are_there(
    prometheus: Prometheus, title: str, expression: str
) -> None:
    names = set(prometheus.get("label/__name__/values"))
    assert set(re.findall(r"superfluid_\w+", expression)) <= names, title
    for variable, value in GRAFANA_VALUES.items():
        expression = expression.replace(variable, value)
    result: list[Any] = prometheus.query(expression)
    assert result, f"{title}: nothing came"


def test_alerts_ask_for_series_that_are_there_and_do_not_fire_on_a_healthy_server(prometheus: Prometheus) -> None:
    names = set(prometheus.get("label/__name__/values"))
    rules = prometheus.get("rules")["groups"][0]["rules"]
    assert len(rules) >= 8
    for rule in rules:
        assert set(re.findall(r"superfluid_\w+", rule["query"])) <= names, rule["name"]
    prometheus.wait_for('count(up{job="superfluid"})')
    assert {rule["name"]: rule["state"] for rule in rules} == {rule["name"]: "inactive" for rule in rules}


def test_dashboard_can_be_imported() -> None:
    assert DASHBOARD["title"] == "superfluid"
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    cells = [
        (x, y)
        for grid in (panel["gridPos"] for panel in DASHBOARD["panels"])
        for x in range(grid["x"], grid["x"] + grid["w"])
        for y in range(grid["y"], grid["y"] + grid["h"])
    ]
    assert len(set(cells)) == len(cells), "panels lie on each other"
    assert max(x for x, _ in cells) < 24
