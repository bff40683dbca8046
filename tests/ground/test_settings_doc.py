"""docs/settings.md and the code name the same environment variables."""

import ast
import re

from tests.ground.settings_read import ROOT, SETTINGS, calls_on, names_in, required_settings, settings_names

DOC = (ROOT / "docs" / "settings.md").read_text()
PORTAL_PART, EMBEDDED_PART = DOC.split("## `make up`")


def rows(text: str) -> dict[str, str]:
    """Returns the default of each variable in the tables of the Markdown document `text`, by the variable's name."""
    return dict(re.findall(r"^\| `([A-Z_]+)` \| (.*?) \|", text, re.MULTILINE))


def test_every_variable_that_the_settings_read_is_documented_and_no_other():
    assert rows(PORTAL_PART).keys() == settings_names()


def test_the_settings_read_the_environment_by_constant_names_only():
    dynamic = [ast.unparse(c) for c in calls_on(SETTINGS, "env") if not isinstance(c.args[0], ast.Constant)]
    assert dynamic == []
    assert "os.environ" not in SETTINGS.read_text()


def test_the_doc_says_which_variables_are_required():
    assert {
        name for name, default in rows(PORTAL_PART).items() if default == "required"
    } == required_settings()


def test_every_variable_of_make_up_is_documented():
    read = set()
    for path in (ROOT / "embedded").glob("*.py"):
        read |= names_in(calls_on(path, "os.environ"))
    read |= set(re.findall(r"FAIRLOT_TEST_[A-Z_]+", (ROOT / "tests" / "conftest.py").read_text()))
    read |= set(re.findall(r"\$\{([A-Z]+):-/usr/bin/python3", (ROOT / "bin" / "bootstrap").read_text()))
    assert read - settings_names() == rows(EMBEDDED_PART).keys()
