"""What a server still has of a conversation after it was killed. A scenario is a function that loads one running server
and returns what it measured as ``(case, metric, value)``; METHODOLOGY.md says how it counts.
"""

import time

from benchmarks.client import BenchmarkError
from benchmarks.measure import FOLLOW_UP, TURN_TOKENS, Measure, take_turn, user
from benchmarks.prompts import Vocabulary
from benchmarks.servers import RunningServer
from benchmarks.settings import GREEDY, BenchSettings
from superfluid.domain.events import GenParams
from superfluid.native import requests, responses
from superfluid.native.client import SessionClient

UNTIL_KILLED_SECONDS = 1.0
_REPLY_SECONDS = 60.0
_USER = 1
_GREEDY = GenParams(GREEDY["temperature"], 1.0, 0.0, 0, 1)


def restart(server: RunningServer, settings: BenchSettings, vocabulary: Vocabulary, round_index: int) -> list[Measure]:
    """The server is killed a second after the end of a long turn; the next turn comes when it is up again."""
    if server.is_one_at_a_time:
        return []
    text = vocabulary.text_of(settings.conversation_tokens, seed=120_000 + round_index)
    messages = [user(text)]
    first = take_turn(server, messages)
    time.sleep(UNTIL_KILLED_SECONDS)
    server = server.restart()
    messages += [{"role": "assistant", "content": first.text()}, user(FOLLOW_UP)]
    again = take_turn(server, messages)
    measures = _measures("HTTP", first.first_token_seconds, again.first_token_seconds)
    if server.contender == "superfluid":
        measures += _session(server, vocabulary.text_of(settings.conversation_tokens, seed=130_000 + round_index))
    return measures


def _session(server: RunningServer, text: str) -> list[Measure]:
    with _client(server) as client:
        session = client.ask(requests.Create(None, _GREEDY), responses.Created).session
        cold = _session_turn(client, session, text)
    time.sleep(UNTIL_KILLED_SECONDS)
    server = server.restart()
    with _client(server) as client:
        warm = _session_turn(client, session, FOLLOW_UP)
    return _measures("session", cold, warm)


def _client(server: RunningServer) -> SessionClient:
    return SessionClient(server.home / "superfluid.sock")


def _session_turn(client: SessionClient, session: int, text: str) -> float:
    """Seconds from asking to the first event of the reply; returns at its end."""
    client.ask(requests.AppendMessage(session, _USER, text), responses.Committed)
    begun = time.perf_counter()
    client.send(requests.Generate(session, TURN_TOKENS))
    first: float | None = None
    while True:
        match client.receive(_REPLY_SECONDS):
            case responses.Delta():
                first = time.perf_counter() - begun if first is None else first
            case responses.Generated() if first is not None:
                return first
            case other:
                raise BenchmarkError(f"a session answered {other}")


def _measures(case: str, cold: float, warm: float) -> list[Measure]:
    return [
        (f"{case}, turn 1 (cold)", "first_token_seconds", cold),
        (f"{case}, turn 2 after a kill", "first_token_seconds", warm),
        (f"{case}, turn 2 / turn 1", "ratio", warm / cold),
    ]
