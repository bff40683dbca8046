"""The client's package stands alone: it imports nothing of the portal, and only the dependencies that it declares."""

from __future__ import annotations

import ast
import sys
import tomllib
from pathlib import Path

import fairlot_client

FOLDER = Path(fairlot_client.__file__).parent
DECLARED = {"click": "click", "httpx2": "httpx2", "pyyaml": "yaml", "websockets": "websockets"}


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            found.add((node.module or "").partition(".")[0])
    return found


def test_the_package_imports_only_itself_and_its_dependencies() -> None:
    project = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text())["project"]
    assert [one.split(">")[0] for one in project["dependencies"]] == list(DECLARED)
    used = set().union(*(imported(path) for path in FOLDER.rglob("*.py"))) - sys.stdlib_module_names
    assert used == {"fairlot_client", *DECLARED.values()}


def test_the_versions_agree() -> None:
    project = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text())["project"]
    assert project["version"] == fairlot_client.__version__
    assert (FOLDER / "py.typed").exists()
