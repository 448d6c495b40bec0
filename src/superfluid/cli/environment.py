"""The variables that superfluid reads, for the help page and the settings page."""

from typing import NamedTuple


class Variable(NamedTuple):
    """``summary`` fits one line of the help page; without one the variable is only on the settings page."""

    name: str
    default: str
    meaning: str
    summary: str | None = None


VARIABLES = (
    Variable(
        "SUPERFLUID_HOME",
        "`~/.superfluid`",
        "Where superfluid keeps its files; the embedded model lies in `models` below it.",
        "where superfluid keeps its files (~/.superfluid)",
    ),
    Variable(
        "SUPERFLUID_LLAMA_LIB",
        "the binding's own",
        "Another build of libllama: the file, or the directory it lies in. No other place is tried, and one that does "
        "not match the binding is refused.",
        "another libllama: the file or its directory",
    ),
    Variable(
        "SUPERFLUID_LLAMA_LOG",
        "off",
        "`1` lets llama.cpp's own log through.",
        "1 lets llama.cpp's own log through",
    ),
    Variable("SUPERFLUID_API_KEY", "none", "The key that `superfluid top` sends, if `--api-key` is not given."),
    Variable("SUPERFLUID_ENGINE_VERBOSE", "off", "The same as `SUPERFLUID_LLAMA_LOG`."),
    Variable(
        "SUPERFLUID_DEBUG_PRESSURE",
        "off",
        "Set to anything, even to nothing: a line on stderr before each decision to give up kept prefixes.",
    ),
    Variable(
        "SUPERFLUID_DEBUG_TICK",
        "off",
        "Set to anything, even to nothing: a line on stderr for every call of the engine, past `--log-filter`.",
    ),
    Variable(
        "SUPERFLUID_NODE_NAME",
        "the host's name",
        "What this server is called in its metrics.",
        "what this server is called in its metrics",
    ),
    *(
        Variable(f"SUPERFLUID_SPEC_{name}", "none", f"Stands for `{flag}` where that is not given.")
        for name, flag in (
            ("ADAPTIVE", "--spec-adaptive"),
            ("MIN_YIELD", "--spec-min-yield"),
            ("LANE_YIELD_ROUNDS", "--spec-yield-rounds"),
            ("GATE", "--spec-throughput-gate"),
            ("GATE_PROBE", "--spec-gate-probe-tokens"),
            ("MIN_SPEEDUP", "--spec-min-speedup"),
            ("GATE_REPROBE", "--spec-gate-reprobe"),
            ("GATE_REPROBE_MAX", "--spec-gate-reprobe-max"),
        )
    ),
    Variable(
        "HF_TOKEN",
        "none",
        "Sent to the hub, for gated and private models. No worker sees it.",
        "the hub's token, for gated and private models",
    ),
    Variable("TMPDIR", "`/tmp`", "Where the session API's socket goes if its default path is too long for one."),
    Variable("HF_ENDPOINT", "the public hub", "Another hub, such as a mirror: an `http://` or `https://` address."),
    Variable(
        "HF_HUB_CACHE",
        "`$HF_HOME/hub`",
        "Where pulled models are kept, in the layout that the hub's other clients use too.",
    ),
    Variable(
        "HF_HOME", "`$XDG_CACHE_HOME/huggingface`", "Its `hub` folder is the cache where `HF_HUB_CACHE` is not set."
    ),
    Variable("XDG_CACHE_HOME", "`~/.cache`", "The place of caches where `HF_HOME` is not set."),
)


def variables_help() -> str:
    """The section of the help page."""
    shown = [variable for variable in VARIABLES if variable.summary is not None]
    lines = [f"  {variable.name:<23}  {variable.summary}" for variable in shown]
    return "\n".join(("\b", "Environment:", *lines))
