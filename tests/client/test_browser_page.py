"""``clients/browser``, the example page, used as a person would, in a real browser on a whole daemon."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fixtures.browser import Browser, Tab, serving_pages
from tests.fixtures.live_daemon import LiveDaemon

from superfluid.domain.events import Generated, Message
from superfluid.domain.reply import Finish

PAGE = Path(__file__).resolve().parents[2] / "clients" / "browser" / "index.html"
SCRIPT = {
    "replies": [
        {"when": "rivers", "text": "<think>Europe, then.</think>The Rhine, the <b>Rhône</b>, the Po."},
        {
            "when": "weather",
            "text": 'I ask. <tool_call>{"name":"weather","arguments":{"city":"Paris"}}</tool_call>',
        },
        {"when": "hello", "text": "Hello yourself."},
    ],
    "step_seconds": 0.004,
}


class Place:
    def __init__(self, daemon: LiveDaemon, port: int) -> None:
        self.daemon = daemon
        self.server = f"127.0.0.1:{daemon.web_port}"
        self.token = (daemon.sessions / "web-token").read_text()
        self.origin = f"http://localhost:{port}"
        self.unlisted = f"http://127.0.0.1:{port}"

    def address(self, *, origin: str | None = None, token: str | None = None) -> str:
        return f"{origin or self.origin}/#server={self.server}&token={token or self.token}"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    home = tmp_path_factory.mktemp("page")
    script = home / "script.json"
    script.write_text(json.dumps(SCRIPT))
    with (
        serving_pages({"/": PAGE.read_text(encoding="utf-8")}) as port,
        LiveDaemon(home, script, "--web-origin", f"http://localhost:{port}") as daemon,
    ):
        yield Place(daemon, port)


def say(tab: Tab, text: str) -> None:
    tab.wait_for("document.body.dataset.state === 'ready'")
    tab.evaluate(f"document.querySelector('#text').value = {text!r}; document.querySelector('#send').click()")


def wait_until_idle(tab: Tab) -> None:
    tab.wait_for("document.body.dataset.state === 'ready' && document.querySelector('.turn')")


def texts(tab: Tab, selector: str) -> list[str]:
    found = tab.evaluate(f"[...document.querySelectorAll({selector!r})].map((part) => part.textContent)")
    assert isinstance(found, list)
    return found


def test_page_when_a_message_is_sent_streams_the_reply_as_text(browser: Browser, place: Place) -> None:
    with browser.tab(place.address()) as tab:
        tab.evaluate(
            """globalThis.lengths = new Set();
            new MutationObserver(() => lengths.add(document.querySelector("#log").textContent.length))
                .observe(document.querySelector("#log"), { childList: true, subtree: true, characterData: true })"""
        )
        say(tab, "Name three rivers.")
        wait_until_idle(tab)
        assert texts(tab, ".turn.user") == ["Name three rivers."]
        assert texts(tab, ".reasoning") == ["Europe, then."]
        # What a model writes is shown, never run.
        assert texts(tab, ".turn.assistant .text") == ["The Rhine, the <b>Rhône</b>, the Po."]
        assert tab.evaluate("document.querySelectorAll('#log b').length") == 0
        assert tab.evaluate("lengths.size") > 10


def test_page_after_a_reload_shows_the_conversation_and_goes_on(browser: Browser, place: Place) -> None:
    with browser.tab(place.address()) as tab:
        say(tab, "Name three rivers.")
        wait_until_idle(tab)
        before = texts(tab, ".turn")
        tab.evaluate("globalThis.isOld = true; location.reload()")
        tab.wait_for("!globalThis.isOld && document.readyState === 'complete'")
        wait_until_idle(tab)
        assert texts(tab, ".turn") == before
        say(tab, "And hello.")
        tab.wait_for("document.querySelectorAll('.turn.user').length === 2")
        wait_until_idle(tab)
        assert texts(tab, ".turn.assistant .text")[1] == "Hello yourself."
        (session,) = {int(part) for part in tab.evaluate("location.hash").split("session=")[1:]}
    with place.daemon.client() as client:
        roles = [event.body.role for event in client.read(session) if isinstance(event.body, Message)]
    assert roles == [1, 1]


def test_page_keeps_the_token_out_of_its_address(browser: Browser, place: Place) -> None:
    with browser.tab(place.address()) as tab:
        tab.wait_for("document.body.dataset.state === 'ready'")
        assert place.token not in tab.evaluate("location.href")
        assert tab.evaluate("history.length") <= 2
        # Nor is it sent to whoever serves the page.
        assert all(place.token not in url for _, url in tab.requests() if "#" not in url)


def test_page_shows_a_tool_call(browser: Browser, place: Place) -> None:
    with browser.tab(place.address()) as tab:
        say(tab, "How is the weather?")
        wait_until_idle(tab)
        assert texts(tab, ".call") == ['weather({"city":"Paris"})']


def test_stop_ends_the_reply_and_the_session_says_so(browser: Browser, place: Place) -> None:
    with browser.tab(place.address()) as tab:
        say(tab, "Babble on.")
        tab.wait_for("document.querySelector('.turn.assistant .text')?.textContent.length > 20")
        tab.evaluate("document.querySelector('#stop').click()")
        wait_until_idle(tab)
        assert texts(tab, ".note") == ["stopped"]
        session = int(tab.evaluate("location.hash").partition("session=")[2])
    with place.daemon.client() as client:
        last = client.read(session)[-1].body
    assert isinstance(last, Generated)
    assert last.finish == Finish.CANCELLED


def test_new_conversation_is_another_session(browser: Browser, place: Place) -> None:
    with browser.tab(place.address()) as tab:
        say(tab, "hello")
        wait_until_idle(tab)
        first = tab.evaluate("location.hash")
        tab.evaluate("document.querySelector('#new').click()")
        assert texts(tab, ".turn") == []
        say(tab, "hello")
        wait_until_idle(tab)
        assert tab.evaluate("location.hash") != first


def test_page_that_is_refused_says_what_to_look_at(browser: Browser, place: Place) -> None:
    for address in (place.address(token="0" * 64), place.address(origin=place.unlisted)):
        with browser.tab(address) as tab:
            tab.wait_for("document.querySelector('#notice').textContent")
            notice = tab.evaluate("document.querySelector('#notice').textContent")
            assert f"--web-origin {tab.evaluate('location.origin')}" in notice
            assert "token" in notice
            assert tab.evaluate("getComputedStyle(document.querySelector('#connect')).display") == "grid"


def test_page_whose_session_is_unknown_says_so_and_can_be_used(browser: Browser, place: Place) -> None:
    with browser.tab(f"{place.address()}&session=987654") as tab:
        tab.wait_for("document.body.dataset.state === 'ready'")
        assert "unknown session 987654" in tab.evaluate("document.querySelector('#notice').textContent")
        say(tab, "hello")
        wait_until_idle(tab)
        assert texts(tab, ".turn.assistant .text") == ["Hello yourself."]


def test_page_loads_nothing_but_itself(browser: Browser, place: Place) -> None:
    with browser.tab(place.address()) as tab:
        tab.wait_for("document.body.dataset.state === 'ready'")
        others = [url for _, url in tab.requests() if not url.startswith(place.origin)]
        assert others == []
        blocked = tab.evaluate(f"fetch('http://{place.server}/web/health').then(() => 'sent', String)")
        assert blocked == "TypeError: Failed to fetch"
        assert "Content Security Policy" in tab.console()
