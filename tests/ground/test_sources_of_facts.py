"""Code makes decisions by database columns and codes, never by the audit trail or by texts that are written for
people."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("accounting", "scheduling", "portal")
TRAIL = re.compile(r"\bAuditEvent\b|accounting_auditevent")
# These modules write, show or guard the audit trail, and do not decide by its contents.
OF_THE_TRAIL = {
    "accounting/access/audit.py",
    "accounting/ledger/heads.py",
    "accounting/ledger/journals.py",
    "accounting/models/__init__.py",
    "accounting/models/audit.py",
    "portal/administration/trail.py",
    "portal/administration/trail_search.py",
    "portal/api/audit/schemas.py",
    "portal/reservations/views.py",
}


def test_only_pages_of_the_audit_trail_read_it() -> None:
    found = {
        str(path.relative_to(ROOT))
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        if "migrations" not in path.parts and TRAIL.search(path.read_text())
    }
    assert found == OF_THE_TRAIL


# Columns and attributes that contain text for people, written by Fairlot, its users or other programs.
PROSE = {
    "text", "sentence", "message", "end_message", "trouble", "failure", "answer", "reason_text", "state_reason",
    "paused_reason", "snooze_reason", "why_not_ready", "why_failed", "why_unknown",
}  # fmt: skip
TAKE_APART = {
    "startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition", "split", "rsplit",
    "splitlines", "find", "index", "count", "replace",
}  # fmt: skip
OF_RE = {"match", "search", "fullmatch", "findall", "split", "sub"}
LOOKUPS = {
    "contains", "icontains", "startswith", "istartswith", "endswith", "iendswith", "regex", "iregex", "exact", "in",
}  # fmt: skip


# Modules that may read such an attribute, each with the reason: its text is no prose there, or no code says the same.
EXCEPTIONS = {
    "accounting/ledger/heads.py": "the line of a head has a fixed form, which is signed",
    "scheduling/announcements/actions.py": "the text that an operator enters, which is tidied and checked",
    "portal/docs/terms.py": "a tooltip shows the first sentence of a page",
    "portal/sessions/http.py": "an answer with its status and its code",
    "scheduling/backends/kubernetes/checking.py": "Kubernetes names a policy that denies in its message alone",
    "scheduling/backends/kubernetes/orders.py": "Kubernetes says that a field is immutable in its message alone",
    "scheduling/importers/reading.py": "the text of a foreign file",
    "scheduling/importers/slurm/__init__.py": "the text of a foreign file",
}


def is_prose(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in PROSE


def is_said(node: ast.AST) -> bool:
    """Returns whether the node is a fixed value with which code could compare a text.

    Such a value is a non-empty string literal, a name in capitals, or a tuple, list or set that contains either.
    """
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(map(is_said, node.elts))
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and node.value != ""
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name.isupper()


def readings(tree: ast.AST) -> Iterator[int]:
    """Yields the line numbers where code compares, searches or splits a text that is written for people.

    PROSE contains the names of the attributes with such texts.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(map(is_prose, sides)) and any(map(is_said, sides)):
                yield node.lineno
        elif isinstance(node, ast.Call):
            called = node.func
            of_text = (
                isinstance(called, ast.Attribute) and called.attr in TAKE_APART and is_prose(called.value)
            )
            of_re = (
                isinstance(called, ast.Attribute) and called.attr in OF_RE and any(map(is_prose, node.args))
            )
            lookups = (str(word.arg).rpartition("__")[::2] for word in node.keywords)
            asked = any(field.rpartition("__")[2] in PROSE and how in LOOKUPS for field, how in lookups)
            if of_text or of_re or asked:
                yield node.lineno


def test_code_that_reads_prose_is_found() -> None:
    code = """
event.text == "Stopped"
if DRAINED in lease.text: pass
job.end_message.startswith("Cancelled")
PATTERN.match(event.text)
events.filter(job__text__contains="drained")
if service.trouble != trouble or not event.text: pass
"""
    assert list(readings(ast.parse(code))) == [2, 3, 4, 5, 6]


def test_no_code_reads_prose() -> None:
    found = {
        str(path.relative_to(ROOT)): list(readings(ast.parse(path.read_text())))
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        if "migrations" not in path.parts
    }
    assert {path: lines for path, lines in found.items() if lines and path not in EXCEPTIONS} == {}
    assert [path for path in EXCEPTIONS if not found.get(path)] == [], "these need no exception any more"
