"""The whole daemon as its users meet it: started, talked to over HTTP, disturbed, and ended."""

import http.client
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from anthropic import Anthropic
from openai import OpenAI
from tests.fixtures.command_line import COMMAND, clean_environment, run_superfluid
from tests.fixtures.http_daemon import CHAT, Background, HttpDaemon, signal_once, streamed_text, wait_until
from tests.fixtures.short_paths import short_directory
from tests.fixtures.tiny_gguf import write_tiny_model

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

CALL = 'Let me look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def write_script(directory: Path, **script: Any) -> str:
    path = directory / "script.json"
    path.write_text(json.dumps(script))
    return str(path)


@pytest.fixture
def slow_daemon(tmp_path: Path) -> Iterator[HttpDaemon]:
    """Babbles at 200 tokens a second on two lanes; two more requests may wait."""
    script = write_script(tmp_path, replies=[{"when": "forecast", "text": CALL}, {"text": None}], step_seconds=0.005)
    options = ("--runtime", "fake", "--max-batch", "2", "--max-queue", "2", "--worker-timeout", "0.5")
    with HttpDaemon(tmp_path, script, *options, environment={"HF_TOKEN": "hf_secret", "PLAIN": "kept"}) as daemon:
        yield daemon


# ---- start


def test_daemon_says_that_it_is_loading_until_it_is_ready(tmp_path: Path) -> None:
    script = write_script(tmp_path, load_seconds=2.5)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    daemon = HttpDaemon(tmp_path, script, "--runtime", "fake", port=port)
    try:
        wait_until(lambda: _connects(port))
        assert daemon.get("/health")[0] == 503
        status, answer = daemon.chat("hi")
        assert (status, answer["error"]["code"]) == (503, "model_loading")
        wait_until(lambda: daemon.get("/health")[0] == 200)
        assert daemon.chat("hi", max_tokens=1)[0] == 200
    finally:
        daemon.process.kill()
        daemon.process.wait()


def test_daemon_that_is_stopped_while_it_loads_takes_its_socket_along(tmp_path: Path) -> None:
    script = write_script(tmp_path, load_seconds=60.0)
    with short_directory() as directory:
        path = directory / "socket"
        command = [*COMMAND, "serve", script, "--runtime", "fake", "--http", "127.0.0.1:0", "--socket", str(path)]
        with subprocess.Popen(command, env=clean_environment(tmp_path), stdout=-3, stderr=-3) as process:
            wait_until(path.exists)
            with socket.socket(socket.AF_UNIX) as client:
                wait_until(lambda: client.connect_ex(str(path)) == 0)
                process.terminate()
                assert process.wait(20) == 0
                assert client.recv(1) == b""
        assert not path.exists()


def _connects(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_taken_port_ends_the_start_with_1_and_names_the_address(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = run_superfluid("serve", "--runtime", "fake", "--no-sessions", "--http", address, home=tmp_path)
    assert ended.returncode == 1
    assert f"error: cannot listen on {address}: Address already in use; another program listens there, " in ended.stderr


def test_file_that_aborts_llama_cpp_ends_the_worker_and_is_reported_with_its_last_words(tmp_path: Path) -> None:
    """The header reads well, but two tokens have the same text: llama.cpp gives up with an assertion."""
    path = write_tiny_model(tmp_path / "twins.gguf")
    length = (1).to_bytes(8, "little")
    path.write_bytes(path.read_bytes().replace(length + b"e" + length, length + b"f" + length, 1))
    ended = run_superfluid("serve", str(path), "--no-sessions", "--port", "0", home=tmp_path)
    assert ended.returncode == 1
    error = ended.stderr.strip().splitlines()[-1]
    assert error.startswith("error: The model's process died of SIGABRT while loading the model.")
    assert "GGML_ASSERT" in error


def test_library_that_is_none_is_refused_with_1(tmp_path: Path) -> None:
    (tmp_path / "libllama.so").write_text("no library")
    (tmp_path / "libllama.dylib").write_text("no library")
    model = write_tiny_model(tmp_path / "tiny.gguf")
    environment = {"SUPERFLUID_LLAMA_LIB": str(tmp_path)}
    ended = run_superfluid("serve", str(model), "--no-sessions", "--port", "0", home=tmp_path, environment=environment)
    assert ended.returncode == 1
    assert f"error: the libllama in {tmp_path} is refused" in ended.stderr


def test_daemon_whose_output_nobody_reads_serves_and_ends_with_0(tmp_path: Path) -> None:
    command = [*COMMAND, "serve", "--runtime", "fake", "--no-sessions", "--http", "127.0.0.1:0"]
    environment = clean_environment(tmp_path)
    log = tmp_path / "log"
    with log.open("wb") as stderr, subprocess.Popen(command, env=environment, stdout=-1, stderr=stderr) as process:
        assert process.stdout is not None
        process.stdout.close()
        wait_until(lambda: "the model is loaded" in log.read_text())
        process.terminate()
        assert process.wait(20) == 0


@on_linux
def test_worker_environment_holds_no_credential(slow_daemon: HttpDaemon) -> None:
    environment = Path(f"/proc/{slow_daemon.worker_pid()}/environ").read_bytes().split(b"\0")
    assert b"PLAIN=kept" in environment
    assert b"HF_TOKEN" not in {entry.partition(b"=")[0] for entry in environment}


# ---- requests


def test_call_of_a_tool_reaches_the_openai_client_whole_and_in_pieces(slow_daemon: HttpDaemon) -> None:
    client = OpenAI(base_url=f"http://127.0.0.1:{slow_daemon.port}/v1", api_key="none")
    asked: dict[str, Any] = {
        "model": "fake", "messages": [{"role": "user", "content": "forecast"}], "tools": [TOOL],
    }  # fmt: skip
    whole = client.chat.completions.create(**asked).choices[0]
    assert (whole.finish_reason, whole.message.content) == ("tool_calls", "Let me look.")
    (call,) = whole.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Oslo"})
    deltas = [chunk.choices[0].delta for chunk in client.chat.completions.create(**asked, stream=True)]
    calls = [entry.function for delta in deltas for entry in delta.tool_calls or []]
    assert [entry.name for entry in calls if entry.name] == ["weather"]
    assert json.loads("".join(entry.arguments or "" for entry in calls)) == {"city": "Oslo"}


def test_call_of_a_tool_reaches_the_anthropic_client_whole_and_in_pieces(slow_daemon: HttpDaemon) -> None:
    client = _anthropic_client(slow_daemon)
    asked: dict[str, Any] = {
        "model": "fake", "max_tokens": 400, "messages": [{"role": "user", "content": "forecast"}],
        "tools": [{"name": "weather", "input_schema": {"type": "object"}}],
    }  # fmt: skip
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    for message in (whole, streamed):
        text, call = message.content
        assert (text.type, call.type, message.stop_reason) == ("text", "tool_use", "tool_use")
        assert (text.text, call.name, call.input) == ("Let me look.", "weather", {"city": "Oslo"})
    assert whole.usage.output_tokens == streamed.usage.output_tokens


def _anthropic_client(daemon: HttpDaemon) -> Any:
    return Anthropic(base_url=f"http://127.0.0.1:{daemon.port}", api_key="none", max_retries=0)


def test_request_over_the_queues_bound_is_told_to_come_back(slow_daemon: HttpDaemon) -> None:
    running = [Background(lambda: slow_daemon.chat("x", max_tokens=400)) for _ in range(4)]
    wait_until(lambda: slow_daemon.metric("superfluid_queue_depth") == 2)
    with slow_daemon.request("POST", CHAT, slow_daemon.chat_body("x", max_tokens=1)) as response:
        assert (response.status, response.headers["retry-after"]) == (503, "1")
        assert json.loads(response.read())["error"]["code"] == "queue_full"
    message = {"model": "fake", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}
    with slow_daemon.request("POST", "/v1/messages", message) as response:
        assert (response.status, response.headers["retry-after"]) == (503, "1")
        assert json.loads(response.read())["error"]["type"] == "overloaded_error"
    assert [call.result()[0] for call in running] == [200] * 4


@pytest.mark.parametrize("is_stream", [True, False])
def test_client_that_hangs_up_frees_its_lane(slow_daemon: HttpDaemon, is_stream: bool) -> None:
    with socket.create_connection(("127.0.0.1", slow_daemon.port)) as client:
        body = json.dumps(slow_daemon.chat_body("x", stream=is_stream, max_tokens=5000)).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body)
        wait_until(lambda: slow_daemon.metric("superfluid_lanes_active") == 1)
    wait_until(lambda: slow_daemon.metric("superfluid_lanes_active") == 0, seconds=15)


def test_every_answer_has_its_line_in_the_access_log(slow_daemon: HttpDaemon) -> None:
    slow_daemon.chat("x", max_tokens=3)
    slow_daemon.stream("x", max_tokens=3)
    lines = [line.partition("<-- ")[2] for line in slow_daemon.log.splitlines() if "<-- " in line]
    assert [line.split(" model=")[0] for line in lines] == [f"200 POST {CHAT}", f"200 POST {CHAT} (stream)"]
    assert all(line.endswith("finish=length") for line in lines)


# ---- a worker that goes


@on_linux
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_stream_goes_on_behind_a_worker_that_was_lost(slow_daemon: HttpDaemon, number: signal.Signals) -> None:
    asked: dict[str, Any] = {"max_tokens": 60, "temperature": 0.8, "seed": 3}
    expected = slow_daemon.reply("x", **asked)
    disturb = signal_once(slow_daemon.worker_pid(), number, at=3)
    frames = slow_daemon.stream("x", on_text=disturb, **asked)
    assert streamed_text(frames) == expected
    assert frames[-1]["usage"]["completion_tokens"] == 60
    assert slow_daemon.metric("superfluid_worker_respawns_total") == 1


def test_worker_that_dies_at_every_step_ends_in_a_typed_error_and_serving_goes_on(tmp_path: Path) -> None:
    script = write_script(tmp_path, crash_step=1)
    with HttpDaemon(tmp_path, script, "--runtime", "fake") as daemon:
        status, answer = daemon.chat("x")
        assert (status, answer["error"]["code"]) == (500, "worker_failed")
        assert daemon.get("/health")[0] == 503
        assert daemon.get("/v1/models")[0] == 200
        assert daemon.end(signal.SIGTERM) == 0


# ---- the end


@pytest.mark.parametrize(
    "signals",
    [[signal.SIGTERM], [signal.SIGUSR1], [signal.SIGINT], [signal.SIGHUP], [signal.SIGTERM, signal.SIGTERM]],
    ids=lambda signals: "+".join(number.name for number in signals),
)
def test_signal_lets_streams_finish_and_takes_no_more(slow_daemon: HttpDaemon, signals: list[signal.Signals]) -> None:
    running = Background(lambda: slow_daemon.stream("x", max_tokens=150))
    wait_until(lambda: slow_daemon.metric("superfluid_lanes_active") == 1)
    worker = slow_daemon.worker_pid() if sys.platform == "linux" else 0
    assert slow_daemon.end(*signals) == 0
    assert running.result()[-1]["choices"][0]["finish_reason"] == "length"
    assert not _connects(slow_daemon.port)
    assert not _is_running(worker)


def test_second_ctrl_c_ends_streams_with_an_error(slow_daemon: HttpDaemon) -> None:
    running = Background(lambda: slow_daemon.stream("x", max_tokens=5000))
    wait_until(lambda: slow_daemon.metric("superfluid_lanes_active") == 1)
    assert slow_daemon.end(signal.SIGINT, signal.SIGINT) == 0
    assert running.result()[-1]["error"]["code"] == "shutting_down"


def test_drain_that_takes_too_long_ends_streams_with_an_error(tmp_path: Path) -> None:
    script = write_script(tmp_path, step_seconds=0.005)
    with HttpDaemon(tmp_path, script, "--runtime", "fake", "--drain-timeout", "1") as daemon:
        running = Background(lambda: daemon.stream("x", max_tokens=5000))
        wait_until(lambda: daemon.metric("superfluid_lanes_active") == 1)
        assert daemon.end(signal.SIGTERM) == 0
        assert running.result()[-1]["error"]["code"] == "shutting_down"


def test_request_that_is_still_being_sent_when_the_drain_begins_is_refused(slow_daemon: HttpDaemon) -> None:
    body = json.dumps(slow_daemon.chat_body("x", max_tokens=5)).encode()
    connection = http.client.HTTPConnection("127.0.0.1", slow_daemon.port, timeout=20)
    connection.putrequest("POST", "/v1/chat/completions")
    connection.putheader("content-length", str(len(body)))
    connection.endheaders(body[:10])
    # Something that runs keeps the daemon draining until the rest is sent.
    running = Background(lambda: slow_daemon.stream("x", max_tokens=600))
    wait_until(lambda: slow_daemon.metric("superfluid_lanes_active") == 1)
    ending = Background(lambda: slow_daemon.end(signal.SIGTERM))
    wait_until(lambda: not _connects(slow_daemon.port))
    connection.send(body[10:])
    answer = connection.getresponse()
    assert (answer.status, json.loads(answer.read())["error"]["code"]) == (503, "shutting_down")
    connection.close()
    assert running.result()[-1]["choices"][0]["finish_reason"] == "length"
    assert ending.result() == 0


def _is_running(pid: int) -> bool:
    """Whether the process is there and no zombie. Pid 0 is nobody."""
    try:
        return pid > 0 and ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


# ---- a real model, in exact mode


SYSTEM = "You keep the archive of a small harbour town and answer in one sentence. " * 20


@pytest.fixture(scope="module")
def exact_daemon(tmp_path_factory: pytest.TempPathFactory, smollm2_path: Path) -> Iterator[HttpDaemon]:
    options = ("--max-context", "1024", "--flash-attn", "off", "--worker-timeout", "2")
    home = tmp_path_factory.mktemp("exact")
    with HttpDaemon(home, str(smollm2_path), *options, model=smollm2_path.stem) as daemon:
        yield daemon


def test_clients_that_share_a_prefix_compute_it_once_and_get_the_cold_texts(exact_daemon: HttpDaemon) -> None:
    """The first request is cold; the same one, warm and among seven others, says the same."""
    questions = [f"What lies in drawer {number}?" for number in range(8)]
    bodies = [
        exact_daemon.chat_body(question, max_tokens=24, temperature=0, messages=_with_system(question))
        for question in questions
    ]
    cold = _text(_post(exact_daemon, bodies[0]))
    prompt_tokens = _post(exact_daemon, {**bodies[0], "max_tokens": 1})["usage"]["prompt_tokens"]
    before = exact_daemon.metric("superfluid_prefill_tokens_total")
    running = [Background(lambda body=body: _post(exact_daemon, body)) for body in bodies]  # type: ignore[misc]
    answers = [call.result() for call in running]
    assert _text(answers[0]) == cold
    assert min(answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers) > prompt_tokens * 0.9
    assert exact_daemon.metric("superfluid_prefill_tokens_total") - before < prompt_tokens * 1.2
    assert [_text(_post(exact_daemon, body)) for body in bodies] == [_text(answer) for answer in answers]


def test_beginning_that_is_pinned_is_told_as_created_and_then_as_read(exact_daemon: HttpDaemon) -> None:
    client = _anthropic_client(exact_daemon)
    marked = {"type": "text", "text": f"Pinned. {SYSTEM}", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    question = {"role": "user", "content": "What lies in the first drawer?"}
    asked: dict[str, Any] = {"model": exact_daemon.model, "max_tokens": 8, "system": [marked]}
    counted = client.messages.count_tokens(model=exact_daemon.model, system=[marked], messages=[question]).input_tokens
    first = client.messages.create(**asked, messages=[question])
    usage = first.usage
    assert usage.cache_creation_input_tokens > 200
    assert usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens == counted
    history = [question, {"role": "assistant", "content": first.content}, question]
    second = client.messages.create(**asked, messages=history)
    assert second.usage.cache_creation_input_tokens == 0
    assert second.usage.cache_read_input_tokens > counted
    assert exact_daemon.metric("superfluid_pins_held") >= 1


@on_linux
def test_stream_of_a_real_model_goes_on_with_the_same_text_behind_a_killed_worker(exact_daemon: HttpDaemon) -> None:
    asked: dict[str, Any] = {"max_tokens": 60, "temperature": 0}
    expected = exact_daemon.reply("Tell me about a fisherman.", **asked)
    disturb = signal_once(exact_daemon.worker_pid(), signal.SIGKILL, at=5)
    assert streamed_text(exact_daemon.stream("Tell me about a fisherman.", on_text=disturb, **asked)) == expected


def test_health_answers_while_a_prompt_is_read(exact_daemon: HttpDaemon) -> None:
    reading = Background(lambda: exact_daemon.chat("thing " * 900, max_tokens=1))
    wait_until(lambda: exact_daemon.metric("superfluid_lanes_active") == 1)
    assert exact_daemon.get("/health")[0] == 200
    assert exact_daemon.metric("superfluid_lanes_active") == 1, "the prompt was read before the page was asked for"
    assert reading.result()[0] == 200


def _with_system(question: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]


def _post(daemon: HttpDaemon, body: dict[str, Any]) -> dict[str, Any]:
    with daemon.request("POST", CHAT, body) as response:
        answer: dict[str, Any] = json.loads(response.read())
    assert "choices" in answer, answer
    return answer


def _text(answer: dict[str, Any]) -> str:
    text: str = answer["choices"][0]["message"]["content"]
    return text


# ---- keys


def _with_key(daemon: HttpDaemon, path: str, key: str, body: Any = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=60)
    try:
        data = None if body is None else json.dumps(body)
        connection.request("GET" if body is None else "POST", path, data, {"X-Api-Key": key})
        with connection.getresponse() as response:
            return response.status, response.read().decode()
    finally:
        connection.close()


def test_daemon_with_a_key_policy_holds_each_key_to_its_own(tmp_path: Path) -> None:
    policy = tmp_path / "keys.json"
    keys = [{"name": "night", "key_env": "NIGHT", "rate_limit_rpm": 2}, {"name": "ops", "key": "ops-1", "admin": True}]
    policy.write_text(json.dumps({"keys": keys}))
    options = ("--runtime", "fake", "--key-policy", str(policy), "--log-filter", "debug")
    with HttpDaemon(tmp_path, *options, environment={"NIGHT": "owl-1"}) as daemon:
        assert daemon.get("/v1/models")[0] == 401
        status, answer = _with_key(daemon, CHAT, "owl-1", daemon.chat_body("hi", max_tokens=2))
        assert (status, json.loads(answer)["usage"]["completion_tokens"]) == (200, 2)
        assert [_with_key(daemon, "/v1/models", "owl-1")[0] for _ in range(2)] == [200, 429]
        own, everything = (_with_key(daemon, "/metrics", key)[1] for key in ("owl-1", "ops-1"))
        wait_until(lambda: "key policy refused a request" in daemon.log)
        assert 'superfluid_key_rejected_total{key="night",reason="rate_limit"} 1\n' in own
        assert 'key="ops"' not in own
        assert 'superfluid_key_requests_total{key="ops"} 0\n' in everything
        assert "owl-1" not in daemon.log


@on_linux
def test_worker_is_started_without_the_variables_of_the_policy(tmp_path: Path) -> None:
    policy = tmp_path / "keys.json"
    policy.write_text('{"keys": [{"name": "night", "key_env": "NIGHT"}]}')
    environment = {"NIGHT": "owl-1", "PLAIN": "kept"}
    with HttpDaemon(tmp_path, "--runtime", "fake", "--key-policy", str(policy), environment=environment) as daemon:
        worker = Path(f"/proc/{daemon.worker_pid()}/environ").read_bytes()
    assert b"PLAIN=kept" in worker
    assert b"owl-1" not in worker


def test_daemon_with_a_wrong_key_policy_exits_with_2_and_shows_no_secret(tmp_path: Path) -> None:
    policy = tmp_path / "keys.json"
    policy.write_text('{"keys": [{"name": "night", "key": "owl-1", "klass": "agent"}]}')
    result = run_superfluid("serve", "--runtime", "fake", "--key-policy", str(policy), home=tmp_path)
    assert result.returncode == 2
    assert "keys[0] has a field that there is none of" in result.stderr
    assert "owl-1" not in result.stderr
