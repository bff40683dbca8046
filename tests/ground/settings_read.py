"""Finds the environment variables that a Python file reads, by its syntax tree."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = ROOT / "portal" / "settings.py"


def calls_on(path: Path, *objects: str) -> Iterator[ast.Call]:
    """Yields the method calls in the file on one of the expressions in `objects`, such as "env" or "os.environ"."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Call(func=ast.Attribute(value=value)) if ast.unparse(value) in objects:
                yield node


def names_in(calls: Iterator[ast.Call]) -> set[str]:
    first = (call.args[0] for call in calls if call.args)
    return {str(one.value) for one in first if isinstance(one, ast.Constant)}


def settings_names() -> set[str]:
    """Returns the names of all environment variables that portal/settings.py reads."""
    return names_in(calls_on(SETTINGS, "env"))


def required_settings() -> set[str]:
    """Returns the names of the environment variables that portal/settings.py reads without a default."""
    return names_in(
        call
        for call in calls_on(SETTINGS, "env")
        if len(call.args) == 1 and not any(keyword.arg == "default" for keyword in call.keywords)
    )
