import math
import os
from pathlib import Path
from typing import Any

import pytest

from superfluid.cli.serve_flags import serve_parameters
from superfluid.cli.serve_settings import ServeFlags, build_serve_config
from superfluid.config import CompletionConfig, Secret, ServeConfig, SessionsConfig
from superfluid.errors import UsageError

ENVIRONMENT = {"HOME": "/home/someone"}


def built(environment: dict[str, str] | None = None, **flags: Any) -> ServeConfig:
    return build_serve_config(ServeFlags(**flags), ENVIRONMENT | (environment or {}), cores=4, note=lambda _: None)


def test_config_without_flags_is_the_default_configuration() -> None:
    config = built()
    assert config.home == Path("/home/someone/.superfluid")
    assert config == ServeConfig(home=config.home, hub=config.hub, sessions=config.sessions)
    assert config.sessions == SessionsConfig(directory=config.home / "sessions", socket=config.home / "superfluid.sock")
    assert config.hub.cache_directory == Path("/home/someone/.cache/huggingface/hub")


def test_flag_defaults_are_those_of_the_records() -> None:
    # What click hands over when no flag is given is what ServeFlags says by itself.
    from superfluid.cli.serve import serve_command

    context = serve_command().make_context("serve", [])
    assert ServeFlags(**context.params) == ServeFlags()
    assert {parameter.name for parameter in serve_parameters() if parameter.expose_value} == set(context.params)


@pytest.mark.parametrize(
    ("flags", "host", "port"),
    [
        ({}, "127.0.0.1", 8453),
        ({"port": 9000}, "127.0.0.1", 9000),
        ({"host": "0.0.0.0"}, "0.0.0.0", 8453),
        ({"host": "::1", "port": 0}, "::1", 0),
        ({"http": "10.0.0.1:80"}, "10.0.0.1", 80),
        ({"http": "[::1]:80"}, "::1", 80),
        ({"http": "localhost:0", "host": "0.0.0.0", "port": 1}, "localhost", 0),
    ],
)
def test_address_of_http_wins_over_host_and_port(flags: dict[str, Any], host: str, port: int) -> None:
    config = built(**flags).http
    assert (config.host, config.port) == (host, port)


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ({"port": 65_536}, "--port"),
        ({"port": -1}, "--port"),
        ({"http": "1.2.3.4:70000"}, "--http"),
        ({"http": "1.2.3.4"}, "--http"),
        ({"http": ":80"}, "--http"),
        ({"http": "::1:80"}, "--http"),
        ({"http": "a:b"}, "--http"),
        ({"http": ""}, "--http"),
        ({"host": " "}, "--host"),
        ({"api_key": ""}, "--api-key"),
        ({"max_batch": 0}, "--max-batch"),
        ({"max_batch": 257}, "--max-batch"),
        ({"continuous_batching": "0"}, "--max-batch"),
        ({"continuous_batching": "many"}, "--continuous-batching"),
        ({"max_context": "0"}, "--max-context"),
        ({"max_context": "-5"}, "--max-context"),
        ({"max_context": "lots"}, "--max-context"),
        ({"max_context": "1e4"}, "--max-context"),
        ({"max_context": str(2**31)}, "--max-context"),
        ({"max_tokens": 0}, "--max-tokens"),
        ({"max_queue": -1}, "--max-queue"),
        ({"threads": 0}, "--threads"),
        ({"threads": 5}, "--threads"),
        ({"gpu_layers": -2}, "--gpu-layers"),
        ({"host_cache_gb": "-1"}, "--host-cache-gb"),
        ({"host_cache_gb": "nan"}, "--host-cache-gb"),
        ({"host_cache_gb": "x"}, "--host-cache-gb"),
        ({"max_queue": 2**64}, "--max-queue"),
        ({"gpu_layers": 2**64}, "--gpu-layers"),
        ({"max_tokens": 2**31}, "--max-tokens"),
        ({"top_k": 2**31}, "--top-k"),
        ({"starvation_ticks": 2**31}, "--starvation-ticks"),
        ({"tick_decode_budget": 2**63}, "--tick-decode-budget"),
        ({"spec_yield_rounds": 2**31}, "--spec-yield-rounds"),
        ({"drain_timeout": 1e300}, "--drain-timeout"),
        ({"worker_timeout": 1e300}, "--worker-timeout"),
        ({"worker_timeout": 0.0}, "--worker-timeout"),
        ({"worker_timeout": float("inf")}, "--worker-timeout"),
        ({"drain_timeout": -1.0}, "--drain-timeout"),
        ({"drain_timeout": float("nan")}, "--drain-timeout"),
        ({"temperature": 2.1}, "--temperature"),
        ({"temperature": float("nan")}, "--temperature"),
        ({"top_p": 1.01}, "--top-p"),
        ({"top_p": -0.1}, "--top-p"),
        ({"min_p": float("inf")}, "--min-p"),
        ({"top_k": -1}, "--top-k"),
        ({"repeat_penalty": 2.5}, "--repeat-penalty"),
        ({"wants_monitor": True}, "--tui"),  # there is no terminal here
        ({"runtimes": ("mlx",)}, "--runtime"),
        ({"runtimes": ("other=fake",), "models": ("m.gguf",)}, "--runtime"),
        ({"models": ("",)}, "--model"),
    ],
)
def test_flag_out_of_range_is_a_usage_error_that_names_it(flags: dict[str, Any], name: str) -> None:
    with pytest.raises(UsageError) as refused:
        built(**flags)
    assert refused.value.param == name
    assert name.lstrip("-").split("-")[0] in refused.value.message


@pytest.mark.parametrize(
    "flags",
    [
        {"temperature": 0.0, "top_p": 0.0, "min_p": 0.0, "top_k": 0, "repeat_penalty": 0.0},
        {"temperature": 2.0, "top_p": 1.0, "min_p": 1.0, "top_k": 10_000, "repeat_penalty": 2.0},
        {"max_batch": 1, "max_queue": 0, "threads": 4, "gpu_layers": -1, "max_tokens": 1, "drain_timeout": 0.0},
        {"max_batch": 256, "threads": 1, "gpu_layers": 0, "host_cache_gb": "0"},
    ],
)
def test_flags_at_the_ends_of_their_ranges_are_taken(flags: dict[str, Any]) -> None:
    built(**flags)


def test_sampling_flags_reach_the_generation_defaults() -> None:
    generation = built(temperature=0.5, top_p=0.9, top_k=20, min_p=0.1, repeat_penalty=1.1, max_tokens=99).generation
    sampling = generation.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 20)
    assert (sampling.min_p, sampling.repeat_penalty, generation.max_tokens) == (0.1, 1.1, 99)


def test_max_context_below_the_least_window_is_raised_with_a_note() -> None:
    notes: list[str] = []
    config = build_serve_config(ServeFlags(max_context="100"), ENVIRONMENT, cores=1, note=notes.append)
    assert config.model.window_tokens == 512
    assert len(notes) == 1
    assert "--max-context 100 is raised to 512" in notes[0]


@pytest.mark.parametrize(("text", "tokens"), [("auto", None), ("512", 512), ("131072", 131_072)])
def test_max_context_is_a_number_or_auto(text: str, tokens: int | None) -> None:
    assert built(max_context=text).model.window_tokens == tokens


@pytest.mark.parametrize(("text", "count"), [("auto", None), ("0", 0), ("1.5", 3 * 2**29)])
def test_host_cache_is_gibibytes_or_auto(text: str, count: int | None) -> None:
    assert built(host_cache_gb=text).model.host_cache_bytes == count


@pytest.mark.parametrize(
    ("runtimes", "expected"),
    [
        ((), "auto"),
        (("llama.cpp",), "llamacpp"),
        (("llama-cpp",), "llamacpp"),
        (("fake", "llamacpp"), "llamacpp"),
        (("m.gguf=fake",), "fake"),
    ],
)
def test_runtime_named_last_counts(runtimes: tuple[str, ...], expected: str) -> None:
    assert built(runtimes=runtimes, models=("m.gguf",)).model.runtime == expected


def test_continuous_batching_sets_the_lanes_unless_max_batch_does() -> None:
    assert built(continuous_batching="3").model.lanes == 3
    assert built(continuous_batching="3", max_batch=5).model.lanes == 5
    assert built(continuous_batching="").model.lanes == 8


def test_model_named_both_ways_must_be_one() -> None:
    assert built(models=("m.gguf",)).model.model == "m.gguf"
    assert built(model_flags=("m.gguf",)).model.model == "m.gguf"
    assert built(models=("m.gguf",), model_flags=("m.gguf",)).model.model == "m.gguf"
    with pytest.raises(UsageError, match=r"2 are named: a, b"):
        built(models=("a",), model_flags=("b",))


def test_environment_reaches_the_configuration() -> None:
    config = built(
        {
            "SUPERFLUID_HOME": "/srv/sf",
            "SUPERFLUID_LLAMA_LIB": "/opt/llama/lib",
            "SUPERFLUID_LLAMA_LOG": "1",
            "SUPERFLUID_NODE_NAME": "node-7",
            "HF_TOKEN": "hf_secret",
            "HF_ENDPOINT": "http://127.0.0.1:1/",
            "HF_HOME": "/srv/hf",
        }
    )
    assert (config.home, config.node_name) == (Path("/srv/sf"), "node-7")
    assert config.model.llama_library_path == Path("/opt/llama/lib")
    assert config.model.is_engine_log_kept
    assert config.hub.token == Secret("hf_secret")
    assert (config.hub.endpoint, config.hub.cache_directory) == ("http://127.0.0.1:1", Path("/srv/hf/hub"))
    assert "hf_secret" not in repr(config)


def test_environment_that_is_empty_or_blank_counts_as_not_set() -> None:
    names = ("SUPERFLUID_HOME", "SUPERFLUID_LLAMA_LIB", "SUPERFLUID_LLAMA_LOG", "SUPERFLUID_NODE_NAME", "HF_TOKEN",
             "HF_ENDPOINT", "HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME")  # fmt: skip
    assert built(dict.fromkeys(names, "")) == built(dict.fromkeys(names, "  ")) == built()


@pytest.mark.parametrize(
    ("environment", "cache"),
    [
        ({"XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub"),
        ({"XDG_CACHE_HOME": "/x", "HF_HOME": "/h"}, "/h/hub"),
        ({"XDG_CACHE_HOME": "/x", "HF_HOME": "/h", "HF_HUB_CACHE": "/c"}, "/c"),
    ],
)
def test_hub_cache_is_where_the_hubs_other_clients_look(environment: dict[str, str], cache: str) -> None:
    assert built(environment).hub.cache_directory == Path(cache)


def test_hub_endpoint_that_is_no_address_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="HF_ENDPOINT"):
        built({"HF_ENDPOINT": "hub.example"})


def test_engine_log_switched_off_by_zero() -> None:
    assert not built({"SUPERFLUID_LLAMA_LOG": "0"}).model.is_engine_log_kept


def test_sessions_flags_become_the_sessions_configuration() -> None:
    config = built(
        sessions_directory=Path("/data/s"),
        socket=Path("/run/x.sock"),
        web="[::1]:8460",
        web_origins=("http://localhost:5173",),
        http_session_ttl=60.0,
        store_budget_gb=0.5,
    ).sessions
    assert config == SessionsConfig(
        directory=Path("/data/s"),
        socket=Path("/run/x.sock"),
        web=("::1", 8460),
        web_origins=("http://localhost:5173",),
        http_ttl_seconds=60.0,
        budget_bytes=2**29,
    )
    assert built(has_no_sessions=True).sessions == SessionsConfig()


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"web": "0.0.0.0:8460"}, "--web"),
        ({"web": "127.0.0.1"}, "--web"),
        ({"web": "127.0.0.1:70000"}, "--web"),
        ({"web_origins": ("http://a",)}, "--web-origin"),
        ({"socket": Path("/" + "x" * 120)}, "--socket"),
        ({"http_commit_ms": -1.0}, "--http-commit-ms"),
        ({"http_session_ttl": 0.0}, "--http-session-ttl"),
        ({"store_budget_gb": -1.0}, "--store-budget-gb"),
        ({"completion_rate": -1.0}, "--completion-rate"),
        ({"completion_rate": 0.0009}, "--completion-rate"),
        ({"completion_rate": math.nan}, "--completion-rate"),
        ({"completion_burst": 0}, "--completion-burst"),
        ({"completion_deadline_ms": -1}, "--completion-deadline-ms"),
        ({"tool_lease_ms": -1}, "--tool-lease-ms"),
        ({"tool_lease_ms": 10**18}, "--tool-lease-ms"),
        ({"has_no_sessions": True, "web": "127.0.0.1:1"}, "--no-sessions"),
        ({"has_no_sessions": True, "web_origins": ("http://a",)}, "--web-origin"),
        ({"has_no_sessions": True, "http_session_ttl": 60.0}, "--no-sessions"),
        ({"has_no_sessions": True, "http_session_ttl": math.nan}, "--http-session-ttl"),
        ({"has_no_sessions": True, "store_budget_gb": 1.0}, "--no-sessions"),
        ({"has_no_sessions": True, "tool_lease_ms": -1}, "--tool-lease-ms"),
        ({"has_no_sessions": True, "http_commit_ms": 1e9}, "--http-commit-ms"),
    ],
)
def test_sessions_flag_out_of_range_or_contradicting_is_refused_by_name(flags: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError) as caught:
        built(**flags)
    assert caught.value.param == named


def test_default_socket_that_is_too_long_moves_to_the_directory_for_temporary_files() -> None:
    long = {"SUPERFLUID_HOME": "/" + "d" * 120}
    assert built({**long, "TMPDIR": "/var/t"}).sessions.socket == Path(f"/var/t/superfluid-{os.getuid()}.sock")
    assert built(long).sessions.socket == Path(f"/tmp/superfluid-{os.getuid()}.sock")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, CompletionConfig(rate=10, burst=20, deadline_seconds=None)),
        ({"completion_rate": 0.0, "completion_burst": 1}, CompletionConfig(rate=0, burst=1)),
        ({"completion_rate": 0.001}, CompletionConfig(rate=0.001)),
        ({"completion_deadline_ms": 1500}, CompletionConfig(deadline_seconds=1.5)),
    ],
)
def test_completions_are_bounded_as_told(flags: dict[str, Any], expected: CompletionConfig) -> None:
    assert built(**flags).completion == expected


def test_request_timeout_is_another_name_of_the_completion_deadline() -> None:
    from superfluid.cli.serve import serve_command

    context = serve_command().make_context("serve", ["--request-timeout", "250"])
    assert ServeFlags(**context.params).completion_deadline_ms == 250


def test_projector_flags_reach_the_model() -> None:
    assert (built().model.mmproj, built().model.pulls_mmproj) == (None, True)
    model = built(mmproj="none", is_pulled_without_mmproj=True).model
    assert (model.mmproj, model.pulls_mmproj) == ("none", False)
    with pytest.raises(UsageError, match="--mmproj"):
        built(mmproj=" ")


def test_budget_that_is_hardly_anything_is_not_taken_for_none_or_for_all() -> None:
    sessions = built(park_budget_gb=1e-12, prefix_disk_gb=1e-12).sessions
    assert (sessions.park_budget_bytes, sessions.prefix_budget_bytes) == (1, 1)
    assert built(park_budget_gb=0.0).sessions.park_budget_bytes is None
