"""bin/words finds discouraged words in prose, and reports neither code nor good sentences."""

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def words():
    spec = spec_from_loader("words", SourceFileLoader("words", str(ROOT / "bin" / "words")))
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "text", "faults"),
    [
        ("a.md", "Whoever drains it\nis told for\ngood.", ["Whoever", "for good", "told"]),
        ("a.md", "Nodes are told apart as soon as it is read. `anew`\n```\nwhoever\n```\n", []),
        ("a.html", '<p data-anew="{{ anew }}">{# whoever #}Load the page anew.</p>', ["anew"]),
        ("a.py", 'def told():\n    """What is free."""\n    return "anew"\n', ["What"]),
        ("a.py", 'def told():\n    """Returns the GPUs that are free."""  # anew\n', []),
        ("a.py", '"""What runs when?"""\n', []),
    ],
)
def test_old_words_are_found_in_prose_only(words, tmp_path, name, text, faults):
    path = tmp_path / name
    path.write_text(text)
    assert [found for _, found, _ in words.faults(path)] == faults


def test_a_fault_names_its_line(words, tmp_path):
    path = tmp_path / "a.md"
    path.write_text("# Title\n\nIt begins\nanew.\n")
    assert words.faults(path) == [(4, "anew", "again")]
