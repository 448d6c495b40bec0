"""The web listener against a real browser: what its pages may do, and what they may not. On a whole daemon."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Struct
from tests.fixtures.browser import REBOUND_NAME, Browser, Tab, serving_pages
from tests.fixtures.live_daemon import LiveDaemon

from superfluid.domain.events import Generated

ROOT = Path(__file__).resolve().parents[2]
REPLY = "The Rhine, the Rhône, and the <b>Po</b>."
SCRIPT = {"replies": [{"when": "rivers", "text": REPLY}], "step_seconds": 0.004}
CREATE = {"Create": {"parent": None, "params": {"temperature": 0, "top_p": 1, "min_p": 0, "top_k": 0, "seed": 1}}}
EMPTY_PAGE = "<!doctype html><title>a page</title><body></body>"


class Site(Struct):
    """A daemon, and a web server with pages; ``listed`` is the one of its origins that the daemon knows."""

    daemon: LiveDaemon
    token: str
    page_port: int

    @property
    def listed(self) -> str:
        return f"http://localhost:{self.page_port}"

    @property
    def unlisted(self) -> str:
        return f"http://127.0.0.1:{self.page_port}"

    @property
    def rebound(self) -> str:
        """Listed as well, so that nothing but the Host header gives it away."""
        return f"http://{REBOUND_NAME}:{self.page_port}"

    @property
    def web(self) -> str:
        return f"127.0.0.1:{self.daemon.web_port}"

    def sessions(self) -> tuple[int, ...]:
        with self.daemon.client() as client:
            return client.list_ids()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    home = tmp_path_factory.mktemp("browser")
    script = home / "script.json"
    script.write_text(json.dumps(SCRIPT))
    with serving_pages({"/": EMPTY_PAGE}) as port:
        origins = ("--web-origin", f"http://localhost:{port}", "--web-origin", f"http://{REBOUND_NAME}:{port}")
        with LiveDaemon(home, script, *origins) as daemon:
            yield Site(daemon, (daemon.sessions / "web-token").read_text(), port)


def documented_page(site: Site) -> str:
    """The script in the documentation, with this daemon's address and token."""
    text = (ROOT / "docs" / "session-api.md").read_text()
    (script,) = re.findall(r"```js\n(.*?)```", text, re.DOTALL)
    assert script.count("127.0.0.1:8460") == 1
    return f"globalThis.TOKEN = {site.token!r};\n{script.replace('127.0.0.1:8460', site.web)}"


def attempt(tab: Tab, url: str, protocols: list[str]) -> dict[str, object]:
    """Opens a WebSocket from the page: which of its events came, and what the page was told."""
    result = tab.evaluate(
        f"""new Promise((resolve) => {{
            const seen = [], socket = new WebSocket({url!r}, {protocols!r});
            socket.onopen = () => {{ seen.push("open"); socket.close(); }};
            socket.onerror = () => seen.push("error");
            socket.onclose = ({{ code, reason, wasClean }}) =>
                resolve({{ seen, code, reason, wasClean, protocol: socket.protocol }});
        }})"""
    )
    assert isinstance(result, dict)
    return result


# What Chromium writes to the console; the page is not told.
CONSOLE = {
    400: "Unexpected response code: 400",
    401: "HTTP Authentication failed",
    403: "Unexpected response code: 403",
}
REFUSED = {"seen": ["error"], "code": 1006, "reason": "", "wasClean": False, "protocol": ""}


def socket_url(site: Site, host: str = "127.0.0.1") -> str:
    return f"ws://{host}:{site.daemon.web_port}/web/ws"


def proof(token: str) -> list[str]:
    return ["superfluid.v1", f"superfluid.token.{token}"]


def test_script_of_the_documentation_streams_a_reply_into_the_page(browser: Browser, site: Site) -> None:
    with browser.tab(site.listed) as tab:
        tab.evaluate(
            f"globalThis.logged = []; console.log = (...words) => logged.push(words); {documented_page(site)}; 0"
        )
        tab.wait_for("logged.length")
        assert tab.evaluate("document.body.textContent") == REPLY
        assert tab.evaluate("logged") == [["done, finish", 1]]
        # Token by token, not in one piece.
        assert tab.evaluate("document.body.childNodes.length") > 5
    with site.daemon.client() as client:
        stored = [event.body for event in client.read(client.list_ids()[-1])]
    assert "".join(body.text for body in stored if isinstance(body, Generated)) == REPLY


def test_page_of_a_listed_origin_with_the_token_agrees_on_the_protocol_and_never_sees_the_token_again(
    browser: Browser, site: Site
) -> None:
    with browser.tab(site.listed) as tab:
        outcome = attempt(tab, socket_url(site), proof(site.token))
        assert outcome["seen"] == ["open"]
        assert outcome["protocol"] == "superfluid.v1"
        (handshake,) = tab.events("Network.webSocketHandshakeResponseReceived")
    assert handshake["response"]["status"] == 101
    assert site.token not in json.dumps(handshake["response"]["headers"])


@pytest.mark.parametrize(
    ("protocols", "status"),
    [
        (["superfluid.v1"], 401),
        ([], 401),
        (proof("0" * 64), 401),
        (["superfluid.v1", "superfluid.token."], 401),
        (["TOKEN"], 400),
        (["superfluid.v2", "TOKEN"], 400),
        ([*proof("0" * 64), "TOKEN"], 401),
    ],
)
def test_page_of_a_listed_origin_without_its_proof_is_refused(
    browser: Browser, site: Site, protocols: list[str], status: int
) -> None:
    offered = [f"superfluid.token.{site.token}" if name == "TOKEN" else name for name in protocols]
    with browser.tab(site.listed) as tab:
        assert attempt(tab, socket_url(site), offered) == REFUSED
        assert CONSOLE[status] in tab.console()


def test_page_of_an_origin_that_is_not_listed_is_refused_in_spite_of_the_token(browser: Browser, site: Site) -> None:
    with browser.tab(site.unlisted) as tab:
        assert attempt(tab, socket_url(site), proof(site.token)) == REFUSED
        assert CONSOLE[403] in tab.console()


def test_frame_without_an_origin_is_refused_in_spite_of_the_token(browser: Browser, site: Site) -> None:
    """A sandboxed frame's origin is ``null``, whoever's page it is in."""
    with browser.tab(site.listed) as tab:
        outcome = tab.evaluate(
            f"""new Promise((resolve) => {{
                onmessage = ({{ data }}) => resolve(data);
                const frame = document.createElement("iframe");
                frame.sandbox = "allow-scripts";
                frame.srcdoc = `<script>
                    const socket = new WebSocket({socket_url(site)!r}, {proof(site.token)!r});
                    socket.onopen = () => parent.postMessage(["open", origin], "*");
                    socket.onclose = ({{ code }}) => parent.postMessage([code, origin], "*");
                <\\/script>`;
                document.body.append(frame);
            }})"""
        )
    assert outcome == [1006, "null"]


@pytest.mark.parametrize("path", ["/web/rpc", "/web/stream"])
def test_fetch_from_a_page_is_blocked_by_the_browser_before_it_is_sent(browser: Browser, site: Site, path: str) -> None:
    before = site.sessions()
    with browser.tab(site.listed) as tab:
        caught = tab.evaluate(
            f"""fetch("http://{site.web}{path}", {{
                method: "POST",
                headers: {{ "content-type": "application/json", "authorization": "Bearer {site.token}",
                    "x-superfluid-csrf": "{site.token}" }},
                body: {json.dumps(json.dumps(CREATE))},
            }}).then((answer) => `answered ${{answer.status}}`, (error) => String(error))"""
        )
        assert caught == "TypeError: Failed to fetch"
        assert "blocked by CORS policy" in tab.console()
        # Only the browser's own question, an OPTIONS request, was sent.
        assert tab.statuses(f"http://{site.web}{path}") == [405]
    assert site.sessions() == before


def test_request_that_browsers_send_unasked_is_refused_and_its_answer_kept_from_the_page(
    browser: Browser, site: Site
) -> None:
    """A "simple" POST goes out without a question first, but cannot carry the token."""
    before = site.sessions()
    with browser.tab(site.listed) as tab:
        answer = tab.evaluate(
            f"""fetch("http://{site.web}/web/rpc", {{ method: "POST", mode: "no-cors", credentials: "include",
                body: {json.dumps(json.dumps(CREATE))} }}).then(({{ type, status }}) => [type, status])"""
        )
        assert answer == ["opaque", 0]
        assert tab.statuses(f"http://{site.web}/web/rpc") == [401]
    assert site.sessions() == before


def test_form_of_a_page_is_refused(browser: Browser, site: Site) -> None:
    before = site.sessions()
    with browser.tab(site.listed) as tab:
        tab.evaluate(
            f"""document.body.innerHTML = '<form method="post" enctype="text/plain" action="http://{site.web}/web/rpc">'
                + '<input name="x" value="1"></form>';
            document.forms[0].submit()"""
        )
        tab.wait_for(f"location.host === '{site.web}' && document.readyState === 'complete'")
        assert "the web token is needed" in tab.evaluate("document.body.textContent")
    assert site.sessions() == before


def test_page_reached_by_a_rebound_name_gets_no_websocket_in_spite_of_token_and_origin(
    browser: Browser, site: Site
) -> None:
    with browser.tab(site.rebound) as tab:
        assert attempt(tab, socket_url(site, REBOUND_NAME), proof(site.token)) == REFUSED
        assert CONSOLE[403] in tab.console()
        # The name is what is wrong: by the address, the same page gets in.
        assert attempt(tab, socket_url(site), proof(site.token))["seen"] == ["open"]


def test_page_of_the_listeners_own_rebound_origin_gets_no_reply_in_spite_of_the_token(
    browser: Browser, site: Site
) -> None:
    """To the browser that page and the listener are one origin, so CORS protects nothing here."""
    before = site.sessions()
    with browser.tab(f"http://{REBOUND_NAME}:{site.daemon.web_port}/web/health") as tab:
        status = tab.evaluate(
            f"""fetch("/web/rpc", {{
                method: "POST",
                headers: {{ "authorization": "Bearer {site.token}", "x-superfluid-csrf": "{site.token}" }},
                body: {json.dumps(json.dumps(CREATE))},
            }}).then(({{ status }}) => status)"""
        )
        assert status == 403
    assert site.sessions() == before
