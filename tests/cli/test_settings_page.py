import re
from pathlib import Path

import click

import superfluid
from superfluid.cli.environment import VARIABLES
from superfluid.cli.serve import serve_command
from superfluid.cli.settings_page import updated

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def test_settings_page_is_up_to_date() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == updated(page), "run: python -m superfluid.cli.settings_page docs/settings.md"


def test_settings_page_names_every_flag_of_serve() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for parameter in serve_command().params:
        if isinstance(parameter, click.Option):
            for name in (*parameter.opts, *parameter.secondary_opts):
                assert re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", page), name


def test_settings_page_names_every_variable_that_the_source_reads() -> None:
    page = PAGE.read_text(encoding="utf-8")
    source = Path(superfluid.__file__).parent
    # Ours are read in other ways too, such as "set to anything".
    name = r'environment_value\(\s*\w+, "([A-Z_]+)"\)|"(SUPERFLUID_[A-Z_]+)"'
    read = {
        found[1] or found[2]
        for path in source.rglob("*.py")
        if path.name != "environment.py"
        for found in re.finditer(name, path.read_text(encoding="utf-8"))
    }
    assert {"SUPERFLUID_HOME", "HF_TOKEN"} <= read
    assert read - {"HOME"} == {variable.name for variable in VARIABLES}
    assert all(f"`{name}`" in page for name in read - {"HOME"})


def test_settings_page_names_every_exit_code() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [int(code) for code in re.findall(r"^\| (\d) \|", page, re.MULTILINE)] == [0, 1, 2, 3]
