"""Rules about the project itself: who may import whom, how long a module may get, what the README promises."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from superfluid.version import __version__

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "superfluid"
LONGEST_MODULE_LINES = 500

BASE = ("errors", "config", "clock", "version")

# The longest matching prefix of a module's name says what it may import besides its own package. What is absent is
# forbidden. A type that two sides need moves down, never sideways.
ALLOWED_IMPORTS: dict[str, tuple[str, ...]] = {
    "errors": (),
    "version": (),
    "clock": (),
    "config": ("errors", "domain.memory", "domain.request", "domain.scheduling", "domain.speculation"),
    "domain": ("errors",),
    "store": ("domain", *BASE),
    "scheduling": ("domain", "errors"),
    "kvfiles": ("domain", *BASE),
    "engine": ("scheduling.sequence", "scheduling.plan", "free_memory", "domain", *BASE),
    "chat": ("domain", *BASE),
    "chat.fake_tokenizer": ("engine.fake_vocabulary", "domain", *BASE),
    "models": BASE,
    "sessions": ("store", "chat", "domain", *BASE),
    "worker": ("scheduling", "engine", "kvfiles", "sessions.backend", "domain", "telemetry.logs", *BASE),
    "worker.protocol": ("domain", "errors"),
    "worker.settings": ("domain",),
    "worker.frames": ("domain", "errors"),
    "http": ("sessions", "domain", *BASE),
    # The schema and its codecs are pure; what answers requests knows the use cases.
    "native": ("domain", "errors"),
    "native.connection": ("sessions", "domain", "errors"),
    "native.dispatch": ("sessions", "domain", "errors"),
    "native.replies": ("sessions", "store.interface", "domain", "errors"),
    "native.subscriptions": ("sessions", "domain", "errors"),
    "native.socket_server": ("sessions.session_api", *BASE),
    "native.turns": ("sessions.session_api",),
    "native.unix_listener": BASE,
    "native.client": BASE,
    "web": ("native", "http", "sessions.session_api", "domain", *BASE),
    "telemetry": ("sessions.interface", "domain", *BASE),
    "tui": ("native.client", "native.protocol", "domain", *BASE),
    "cli.otlp_settings": ("telemetry.filter", *BASE),
    "cli": (
        "domain.memory",
        "domain.adapter",
        "domain.request",
        "domain.scheduling",
        "domain.speculation",
        "models",
        "native.client",
        "telemetry.logs",
        "tui",
        "daemon",
        "engine_settings",
        *BASE,
    ),
    # Clients of the session API: its vocabulary, its records, and the ids they have in a trace.
    "cli.session": ("native", "domain", "telemetry.trace_ids", *BASE),
    "cli.chat": ("native", "domain", *BASE),
    "cli.media": ("native", *BASE),
    # The composition root and its helpers.
    "daemon": ("",),
    "model_stack": ("worker", "sessions", "chat", "models", "telemetry.tracer", "engine_settings", "domain", *BASE),
    "model_search": ("models", *BASE),
    "infill_stack": ("worker", "sessions", "chat", "models", "engine_settings", "domain", *BASE),
    "session_stack": ("native", "web", "http.server", "kvfiles", "sessions", "store", "domain", *BASE),
    "telemetry_stack": ("telemetry", "domain", *BASE),
    "monitor_link": ("telemetry", "tui.protocol", *BASE),
    "engine_settings": ("domain.speculation", "free_memory", "models", "kvfiles.names", "worker.settings", *BASE),
    "descriptors": (),
    "free_memory": (),
    "banner": ("domain", "models.progress", "sessions.interface", *BASE),
}

# A large library is imported by one door, so that it can be replaced there and its errors are translated there.
DOORS: dict[str, tuple[str, ...]] = {
    "llama_cpp": ("engine", "chat.tokenizer", "chat.llama_library"),
    "apsw": ("store",),
    "jinja2": ("chat",),
    "starlette": ("http", "web"),
    "uvicorn": ("http", "web.websocket_protocol"),
    "huggingface_hub": ("models",),
    "prometheus_client": ("telemetry",),
    "opentelemetry": ("telemetry",),
    "textual": ("tui",),
    "xxhash": ("telemetry.trace_ids", "kvfiles"),
    "markdown_it": ("cli.chat.blocks",),
    "gguf": (),
}


def module_name(path: Path) -> str:
    """``http/app.py`` is ``http.app``; a package's own file has the package's name."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def imports_of(path: Path) -> Iterator[str]:
    """Full names of everything imported in the file, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_below(name: str, prefix: str) -> bool:
    return not prefix or name == prefix or name.startswith(f"{prefix}.")


def is_module(name: str) -> bool:
    path = PACKAGE.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").exists()


def inner_imports_of(path: Path) -> set[str]:
    """The project's own modules that the file imports, without the package's name in front."""
    inner = {found.removeprefix("superfluid.") for found in imports_of(path) if found.startswith("superfluid.")}
    named = {name for name in inner if is_module(name)}
    # `from superfluid.x import y` names both x and x.y; where y is a module, it alone is meant.
    return {name for name in named if not any(is_below(other, name) and other != name for other in named)}


def breaches_of(path: Path) -> list[str]:
    """The imports of one module that the table does not allow."""
    name = module_name(path)
    rule = max((prefix for prefix in ALLOWED_IMPORTS if is_below(name, prefix)), key=len, default=None)
    assert rule is not None, f"{name} has no row in ALLOWED_IMPORTS"
    allowed = (*ALLOWED_IMPORTS[rule], name.partition(".")[0])
    return [
        f"{name} imports {target}"
        for target in sorted(inner_imports_of(path))
        if not any(is_below(target, prefix) for prefix in allowed)
    ]


def closure_of(name: str) -> set[str]:
    """Every module of the project that importing ``name`` brings in."""
    reached: set[str] = set()
    waiting = [name]
    while waiting:
        current = waiting.pop()
        path = PACKAGE.joinpath(*current.split("."))
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if current not in reached:
            reached.add(current)
            waiting += inner_imports_of(path)
    return reached


def test_modules_import_only_what_their_row_allows() -> None:
    assert [breach for path in modules() for breach in breaches_of(path)] == []


def test_worker_process_brings_in_nothing_of_the_daemon() -> None:
    foreign = ("sessions", "http", "chat", "store", "models", "native", "worker.supervisor", "daemon", "cli")
    reached = closure_of("worker.__main__")
    assert [name for name in sorted(reached) if any(is_below(name, prefix) for prefix in foreign)] == []


def test_supervisor_brings_in_no_engine_and_no_scheduler() -> None:
    reached = closure_of("worker.supervisor")
    assert [name for name in sorted(reached) if is_below(name, "engine") or is_below(name, "scheduling")] == []


@pytest.mark.parametrize("library", DOORS)
def test_large_library_is_imported_only_at_its_door(library: str) -> None:
    strangers = [
        module_name(path)
        for path in modules()
        if any(is_below(found, library) for found in imports_of(path))
        and not any(is_below(module_name(path), door) for door in DOORS[library])
    ]
    assert strangers == []


def test_command_line_when_imported_loads_no_engine_and_no_server() -> None:
    program = "import sys, superfluid.cli.main; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    environment = os.environ | {"PYTHONPATH": str(PACKAGE.parent)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert {"llama_cpp", "starlette", "uvicorn", "apsw", "jinja2"}.isdisjoint(done.stdout.split())


def test_modules_stay_short_enough_to_read() -> None:
    too_long = [
        str(path.relative_to(ROOT))
        for folder in ("src", "benchmarks", "scripts")
        for path in (ROOT / folder).rglob("*.py")
        if len(path.read_text(encoding="utf-8").splitlines()) > LONGEST_MODULE_LINES
    ]
    assert too_long == []


def test_modules_open_with_a_docstring() -> None:
    silent = [
        module_name(path)
        for path in modules()
        if path.name != "__init__.py" and not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert silent == []


def test_modules_when_imported_read_no_environment() -> None:
    """Only code inside functions may look at the environment."""
    readers = [
        module_name(path)
        for path in modules()
        for statement in ast.parse(path.read_text(encoding="utf-8")).body
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.If)
        and re.search(r"\bos\.(environ|getenv)\b", ast.unparse(statement))
    ]
    assert readers == []


# ---- what a newcomer is promised


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def test_readme_opens_with_the_two_commands() -> None:
    opening = "\n".join((ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:20])
    assert "make serve" in opening
    assert "make test" in opening


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "benchmarks/METHODOLOGY.md"])
def test_page_names_only_make_targets_that_exist(page: str) -> None:
    named = set(re.findall(r"(?:^|`)make ([a-z][a-z-]*)", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE))
    assert named
    assert named <= make_targets()


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "benchmarks/METHODOLOGY.md"])
def test_page_links_only_to_files_that_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    links = [link.partition("#")[0] for link in re.findall(r"\]\((?!https?:)([^)]+)\)", text)]
    assert [link for link in links if link and not ((ROOT / page).parent / link).exists()] == []


def test_ci_runs_the_test_command_of_the_readme() -> None:
    assert re.search(r"^make test\b", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.MULTILINE)


def test_changelog_has_an_entry_for_this_version() -> None:
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_distribution_is_named_apart_from_the_import_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == "superfluid-llm"
    assert project["scripts"] == {"superfluid": "superfluid.cli.main:main"}
    assert project["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")
