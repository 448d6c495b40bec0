"""What ``superfluid serve`` prints for the person who started it. Runs in the daemon."""

import json
import os
from collections.abc import Sequence
from typing import TextIO

from superfluid.config import ModelConfig
from superfluid.domain.model import ModelFacts
from superfluid.models.progress import format_bytes
from superfluid.sessions.interface import ServedModel
from superfluid.version import __version__


def announce_loading(stream: TextIO, model: str | None) -> None:
    _print(f"superfluid {__version__}: loading {model or 'the default model'}", stream)


def announce_ready(
    stream: TextIO, model: ServedModel, *, host: str, port: int, has_key: bool, session_lines: Sequence[str] = ()
) -> str:
    """Where the server is, what it serves, what that takes, and a line to try: printed, and returned."""
    url = base_url(host, port)
    lines = [*_reach(host), *session_lines]
    text = ready_text(model.model_id, model.facts, url, has_key=has_key, session_lines=lines)
    _print(text, stream)
    return text


def _print(text: str, stream: TextIO) -> None:
    try:
        print(text, file=stream, flush=True)
    except BrokenPipeError:
        # A reader that has gone (`superfluid serve | head -3`) is no reason to stop serving. What it did not take would
        # be written again at exit, and turn the exit code into a failure.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def base_url(host: str, port: int) -> str:
    """The address to connect to; a listener on all interfaces is reached through loopback."""
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def _reach(host: str) -> list[str]:
    return ["other machines reach it too, by this one's name or address"] if host in ("0.0.0.0", "::") else []


def guessing_lines(config: ModelConfig, facts: ModelFacts) -> list[str]:
    """What of the exact mode does not hold, if tokens are guessed ahead in it."""
    if not config.speculation.is_on or config.flash_attention != "off" or not facts.can_truncate:
        return []
    return ["tokens are guessed ahead: cached and fresh prompts may differ, though flash attention is off"]


def _sight(facts: ModelFacts) -> str:
    if facts.media is not None:
        return f", sees images ({facts.media.encoder})"
    return ", no images: its projector is of no use" if facts.images_refused else ""


def _kv_type(facts: ModelFacts) -> str:
    return "" if facts.kv_type == "f16" else f" as {facts.kv_type}"


def ready_text(model_id: str, facts: ModelFacts, url: str, *, has_key: bool, session_lines: Sequence[str] = ()) -> str:
    """Pure; see ``announce_ready``."""
    body = {"model": model_id, "messages": [{"role": "user", "content": "Name three rivers."}]}
    key = " \\\n    -H 'authorization: Bearer <your key>'" if has_key else ""
    flash = "on" if facts.flash_attention else "off"
    return "\n".join(
        (
            "",
            f"  {model_id}: {facts.description}, {format_bytes(facts.weights_bytes)}",
            f"  {facts.engine}, {facts.threads} threads, flash attention {flash}{_sight(facts)}",
            f"  {facts.lanes} lanes of {facts.window_tokens:,} tokens; the KV of all lanes takes "
            f"{format_bytes(facts.kv_bytes)}{_kv_type(facts)}",
            *((f"  ({facts.window_reason})",) if facts.window_reason else ()),
            "",
            f"  listening on {url}; OpenAI clients use {url}/v1",
            *(f"  {line}" for line in session_lines),
            "",
            "  Try it:",
            "",
            f"  curl {url}/v1/chat/completions -H 'content-type: application/json'{key} \\",
            f"    -d '{json.dumps(body)}'",
            "",
        )
    )
