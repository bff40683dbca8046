"""Tests that every function that docs/architecture.md names exists in the code."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMED = re.findall(r"`([a-z_/0-9]+\.py)::([\w.]+)`", (ROOT / "docs" / "architecture.md").read_text())


def test_the_page_follows_the_data_hop_by_hop() -> None:
    assert len(NAMED) > 20


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_each_function_that_the_page_names_exists(path: str, name: str) -> None:
    body = ast.parse((ROOT / path).read_text()).body
    for part in name.split("."):
        found = [
            node
            for node in body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == part
        ]
        assert found, f"{path} has no {name}"
        body = found[0].body
