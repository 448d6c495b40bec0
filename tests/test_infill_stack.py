"""A second model that fills in the middle: on the fake engine over every front end, and what refuses to start."""

import json
import re
from pathlib import Path

from openai import OpenAI
from tests.fixtures.command_line import run_superfluid
from tests.fixtures.live_daemon import LiveDaemon
from tests.fixtures.tiny_gguf import write_tiny_model

from superfluid.native import requests, responses

GAP = requests.Complete("def ", "return 1", 0, 12)


def script(path: Path, text: str) -> Path:
    path.write_text(json.dumps({"replies": [{"text": text}], "sampling_defaults": {"temperature": 0.0}}))
    return path


def test_second_model_fills_in_for_every_front_end_and_the_served_one_does_the_rest(tmp_path: Path) -> None:
    options = ("--fim-model", str(script(tmp_path / "small.json", "middle")), "--fim-max-batch", "1")
    with LiveDaemon(tmp_path, script(tmp_path / "large.json", "served"), *options) as daemon:
        with daemon.client() as client:
            filled = client.ask(GAP)
            assert isinstance(filled, responses.Completion)
            assert filled.text == "middle"
            assert daemon.web_client().ask(GAP) == responses.Completion("middle", filled.tokens, True, False)
            session = client.create()
            client.append(session, "hello")
            said = [getattr(event.body, "text", "") for event in client.stream(session, 20)]
            assert "".join(said) == "served"
        api = OpenAI(base_url=f"http://127.0.0.1:{daemon.http_port}/v1", api_key="x", max_retries=0)
        answer = api.completions.create(model="fake", prompt="x", suffix="y", max_tokens=12)
        assert (answer.model, answer.choices[0].text) == ("fake", "middle")
        assert (answer.model_extra or {})["superfluid"]["served_by"] == "fake-fim"
        assert api.completions.create(model="fake", prompt="x", max_tokens=12).choices[0].text == "served"
        with daemon.client() as client:
            page = client.ask(requests.Metrics())
        assert isinstance(page, responses.Text)
        assert 'superfluid_fim_satellite_info{model="fake-fim"} 1' in page.text
        drawn = re.search(r"^superfluid_fim_satellite_decode_tokens_total (\d+)$", page.text, re.MULTILINE)
        assert drawn is not None
        assert int(drawn[1]) > 0
        assert 'superfluid_fim_completions_total{result="generated"} 2' in page.text
        (line,) = [line for line in daemon.log.splitlines() if "POST /v1/completions (fim)" in line]
        assert "model=fake-fim" in line


def test_second_model_fills_in_where_the_served_one_cannot(tmp_path: Path) -> None:
    served = write_tiny_model(tmp_path / "served.gguf", has_infill=False)
    small = write_tiny_model(tmp_path / "small.gguf", seed=1)
    options = ("--fim-model", str(small), "--threads", "1", "--max-context", "512")
    with LiveDaemon(tmp_path, served, *options) as daemon, daemon.client() as client:
        filled = client.ask(GAP)
    assert isinstance(filled, responses.Completion)
    assert len(filled.tokens) == 12


def test_second_model_without_the_tokens_for_it_ends_the_start_with_2(tmp_path: Path) -> None:
    served = write_tiny_model(tmp_path / "served.gguf")
    small = write_tiny_model(tmp_path / "small.gguf", has_infill=False)
    ended = run_superfluid(
        "serve", str(served), "--fim-model", str(small), "--threads", "1", "--port", "0", "--no-tui", home=tmp_path
    )
    assert ended.returncode == 2
    assert "error: --fim-model small cannot fill in the middle" in ended.stderr


def test_second_model_that_is_no_file_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    ended = run_superfluid(
        "serve", str(write_tiny_model(tmp_path / "m.gguf")), "--fim-model", "nonsense", home=tmp_path
    )
    assert ended.returncode == 2
    assert "'nonsense' is neither a file nor a hub id" in ended.stderr
