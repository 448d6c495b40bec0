"""What people type who know llama-server, Ollama or vLLM, and what it is called here. Pure.

These are hints for error messages: none of the words is accepted.
"""

from collections.abc import Mapping

_WINDOW = "here it is --max-context, the window of each lane and not of all of them"
_LANES = "here it is --max-batch"
_HUB = "the hub's id stands alone, as in `superfluid serve org/model:Q4_K_M`"
_QUANT = "the quant stands behind the hub's id, as in org/model:Q4_K_M"
_KV = "here it is --kv-bits, 8 for q8_0 and 4 for q4_0, for keys and values alike"
_DRAFT = "here it is --speculate draft-model:FILE.gguf"
_ALWAYS = "it is always on, so leave it out"
_TEXT_ONLY = "this server generates text only"
_LOG = "here it is --log-filter, such as debug or warn"
_NAME = "a model is called as its file is, or as it is on the hub"
_TEMPLATE = "the chat template is the one in the model file"
_FORMAT = "the model file decides"
_CHUNK = "the size follows from --tick-target-ms; --prefill-budget bounds it"
_TLS = "there is no TLS: put a proxy in front"
_FOREGROUND = "it stays in the foreground; `superfluid chat` can start one behind itself"
_WORKER = "the model always runs in a process of its own"
_PER_REQUEST = "each request brings its own"

FLAGS: Mapping[str, str] = {
    **dict.fromkeys(["-c", "--ctx-size", "--n-ctx", "--num-ctx", "--context-length", "--max-model-len"], _WINDOW),
    **dict.fromkeys(["-np", "--parallel", "--num-parallel", "--max-num-seqs"], _LANES),
    **dict.fromkeys(["-ngl", "--n-gpu-layers"], "here it is --gpu-layers"),
    **dict.fromkeys(["-t", "-tb", "--threads-batch"], "here it is --threads"),
    "-fa": "here it is --flash-attn, with on, off or auto",
    **dict.fromkeys(["-hf", "-hfr", "--hf-repo"], _HUB),
    **dict.fromkeys(
        ["-hff", "--hf-file", "--pull-file"], "the quant stands behind the hub's id, as in org/model:Q4_K_M"
    ),
    **dict.fromkeys(["-hft", "--hf-token"], "the hub's token is taken from the variable HF_TOKEN"),
    **dict.fromkeys(["-ctk", "-ctv", "--cache-type-k", "--cache-type-v", "--kv-cache-dtype"], _KV),
    **dict.fromkeys(["-md", "--model-draft", "--draft-model", "--spec-draft-model"], _DRAFT),
    **dict.fromkeys(["--draft", "--draft-n", "--draft-max"], "here it is --spec-draft-tokens"),
    "--speculative-config": "here it is --speculate",
    **dict.fromkeys(["-n", "--predict", "--n-predict"], "here it is --max-tokens"),
    **dict.fromkeys(["-a", "--alias", "--served-model-name"], _NAME),
    **dict.fromkeys(["-mm", "-mmu", "--mmproj-url"], "here it is --mmproj, with a path"),
    **dict.fromkeys(["-mu", "--model-url"], "name a file, or a hub id such as org/model:Q4_K_M"),
    **dict.fromkeys(["-cb", "--cont-batching", "--jinja", "--metrics", "--slots", "--props"], _ALWAYS),
    **dict.fromkeys(["--cache-prompt", "--cache-reuse", "--enable-prefix-caching"], _ALWAYS),
    **dict.fromkeys(["--enable-chunked-prefill", "--enable-auto-tool-choice"], _ALWAYS),
    **dict.fromkeys(["--chat-template", "--chat-template-file", "--dialect"], _TEMPLATE),
    "--tool-call-parser": "the markers in the model's vocabulary tell tool calls from text",
    "--no-http": "HTTP is always served; --host 127.0.0.1, the default, keeps it on this machine",
    "--sessions-cache": "--no-sessions keeps nothing, and --http-session-ttl keeps requests for a while",
    **dict.fromkeys(["--worker-process", "--no-worker-process"], _WORKER),
    **dict.fromkeys(["--files-max-bytes", "--files-expiry", "--files-sweep"], "there are no files and batches here"),
    **dict.fromkeys(["-cram", "--cache-ram"], "here it is --host-cache-gb, in GiB"),
    "--slot-save-path": "conversations are kept without being asked; --sessions says where",
    **dict.fromkeys(["--embedding", "--embeddings", "--rerank", "--reranking"], _TEXT_ONLY),
    **dict.fromkeys(["-b", "-ub", "--batch-size", "--ubatch-size", "--max-num-batched-tokens"], _CHUNK),
    "--gpu-memory-utilization": "memory is set by --max-context, --max-batch and --host-cache-gb",
    **dict.fromkeys(["--dtype", "--quantization"], _FORMAT),
    **dict.fromkeys(["-s", "--seed"], _PER_REQUEST),
    **dict.fromkeys(["--keep-alive", "--idle-timeout"], "the model stays loaded until the server ends"),
    **dict.fromkeys(["--model-dir", "--models-dir"], "one server serves one model for now"),
    **dict.fromkeys(["--webui", "--no-webui"], "there is no page to chat on; `superfluid chat` is for that"),
    "--api-key-file": "here it is --key-policy, a file of keys with names",
    **dict.fromkeys(["--ssl-key-file", "--ssl-cert-file", "--ssl-keyfile", "--ssl-certfile"], _TLS),
    "--lora-modules": "here it is --lora, with NAME=PATH",
    "--lora-scaled": "here it is --lora; the file says how strongly",
    **dict.fromkeys(["--log-level", "-lv", "--verbosity", "--log-verbosity", "--uvicorn-log-level"], _LOG),
    **dict.fromkeys(["--cors", "--allowed-origins"], "web pages use the session API: --web and --web-origin"),
    "--bind": "here it is --http ADDR:PORT, or --host and --port",
    "-p": "here it is --port",
    **dict.fromkeys(["-d", "--daemon", "--detach"], _FOREGROUND),
}
"""Flags of other servers' ``serve``, and the clause of the error that says what to use instead."""

COMMANDS: Mapping[str, str] = {
    "run": "`superfluid serve MODEL` serves one, and `superfluid chat` talks to it",
    **dict.fromkeys(["start", "up", "load"], "here it is `superfluid serve MODEL`"),
    **dict.fromkeys(["download", "get", "fetch"], "here it is `superfluid pull`"),
    **dict.fromkeys(
        ["ls", "list"], "`superfluid session list` lists conversations, and GET /v1/models says what is served"
    ),
    **dict.fromkeys(["ps", "status"], "`superfluid top HOST:PORT` watches servers"),
    "show": "GET /props tells about the model, and `superfluid session inspect` about a conversation",
    **dict.fromkeys(["stop", "quit", "kill", "down"], "Ctrl-C or SIGTERM ends a server when it has finished its work"),
    **dict.fromkeys(["rm", "delete", "remove"], "`superfluid session purge` deletes a conversation"),
    "launch": "agents are pointed at http://127.0.0.1:8453/v1 in their own settings",
    "runtimes": "llama.cpp is the one there is",
    "bench": "`make bench` measures, in a checkout of the source",
}
"""As ``FLAGS``, of commands of ``superfluid``."""

BELOW: Mapping[str, Mapping[str, str]] = {
    "superfluid": COMMANDS,
    "superfluid session": {
        "ls": "here it is `superfluid session list`",
        **dict.fromkeys(["show", "cat", "get"], "here it is `superfluid session inspect`, or export"),
        **dict.fromkeys(["rm", "delete", "remove"], "here it is `superfluid session purge`"),
        **dict.fromkeys(["mv", "title"], "here it is `superfluid session rename`"),
        **dict.fromkeys(["cp", "branch"], "here it is `superfluid session fork`"),
        **dict.fromkeys(["open", "resume", "continue"], "here it is `superfluid chat --session ID`"),
        "new": "`superfluid chat` begins one",
    },
    "superfluid media": {
        **dict.fromkeys(["add", "upload"], "here it is `superfluid media put`"),
        **dict.fromkeys(["clean", "prune", "clear"], "here it is `superfluid media gc`"),
    },
}
"""Commands that are missing in a group, by the group's path."""


def known_elsewhere(word: str, *, below: str) -> str | None:
    """The clause for the flag or command ``word``, which the command at ``below`` lacks; None if nobody has it."""
    if word.startswith("-"):
        return FLAGS.get(word.replace("_", "-")) if below == "superfluid serve" else None
    return BELOW.get(below, {}).get(word.lower())
