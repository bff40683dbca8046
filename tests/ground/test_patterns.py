r"""Tests that all regular expressions of the code match ASCII characters only.

Without re.ASCII, \d, \w and \s of Python's `re` match the digits, letters and blanks of all scripts.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOMS = ("fairshare", "accounting", "scheduling", "portal", "embedded")
ROOT = Path(__file__).resolve().parents[2]
CLASS = re.compile(r"\\[dDwWsSbB]")


def too_wide(tree: ast.AST) -> Iterator[int]:
    """Yields the line numbers of calls of `re` whose pattern contains a character class and whose flags lack
    re.ASCII."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and ast.unparse(node.func).startswith("re.")):
            continue
        texts = [
            part.value
            for one in node.args[:1]
            for part in ast.walk(one)
            if isinstance(part, ast.Constant) and isinstance(part.value, str)
        ]
        flags = " ".join(
            ast.unparse(one) for one in (*node.args[1:], *(word.value for word in node.keywords))
        )
        if any(map(CLASS.search, texts)) and "re.ASCII" not in flags:
            yield node.lineno


def test_a_pattern_that_is_too_wide_is_found() -> None:
    code = 're.compile(r"\\d")\nre.compile(rb"\\d")\nre.split(r"[\\s,]", x, flags=re.ASCII)\nre.match(rf"{a}\\w+", x)\n'
    assert list(too_wide(ast.parse(code))) == [1, 4]


def test_all_patterns_mean_ascii() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.py"))
        for line in too_wide(ast.parse(path.read_text()))
    ]
    assert not found
