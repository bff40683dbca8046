"""Each verb that an action records has words on the audit pages, and no words are left of a verb that is gone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from portal.administration.verbs import WORDS, Kind, choices, verbs_of, words_for

ROOT = Path(__file__).parents[3]
ROOMS = ("accounting", "scheduling", "portal")
RECORDERS = {"note", "record", "record_many"}  # of accounting.access.audit
Function = ast.FunctionDef | ast.AsyncFunctionDef


def verbs_recorded(source: str) -> set[str]:
    """Returns the verbs that the code records, also those that a helper gets as an argument or makes of parts."""
    module = ast.parse(source)
    functions = [node for node in ast.walk(module) if isinstance(node, Function)]
    found: set[str] = set()
    for function in functions:
        for call in calls_of(function, RECORDERS):
            for keyword in call.keywords:
                if keyword.arg == "verb":
                    found |= texts_of(keyword.value, function, functions)
    return found


def calls_of(node: ast.AST, names: set[str]) -> Iterator[ast.Call]:
    for call in ast.walk(node):
        if isinstance(call, ast.Call):
            called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            if called in names:
                yield call


def texts_of(value: ast.expr, function: Function, functions: list[Function]) -> set[str]:
    """Returns every text that `value` may have inside `function`. Raises AssertionError for what it cannot follow."""
    match value:
        case ast.Constant(value=str(text)):
            return {text}
        case ast.IfExp():
            return texts_of(value.body, function, functions) | texts_of(value.orelse, function, functions)
        case ast.FormattedValue():
            return texts_of(value.value, function, functions)
        case ast.JoinedStr():
            parts = (texts_of(part, function, functions) for part in value.values)
            return {"".join(texts) for texts in product(*parts)}
        case ast.Name(id=name):
            return texts_of_name(name, function, functions)
    raise AssertionError(f"{function.name}: write the verb as text: {ast.unparse(value)}")


def texts_of_name(name: str, function: Function, functions: list[Function]) -> set[str]:
    if name in (taken := [argument.arg for argument in function.args.args + function.args.kwonlyargs]):
        found: set[str] = set()
        for caller in functions:
            for call in calls_of(caller, {function.name}):
                named = [keyword.value for keyword in call.keywords if keyword.arg == name]
                given = named or call.args[taken.index(name) : taken.index(name) + 1]
                for one in given:
                    found |= texts_of(one, caller, functions)
        return found
    values = [
        node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and any(getattr(to, "id", "") == name for to in node.targets)
    ]
    assert values, f"{function.name}: where is {name} set?"
    return {text for value in values for text in texts_of(value, function, functions)}


def test_each_verb_that_is_recorded_has_words_and_no_other_has() -> None:
    recorded = {
        verb
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        if "migrations" not in path.parts
        for verb in verbs_recorded(path.read_text())
    }
    assert set(verbs_of(Kind)) == recorded


def test_a_verb_is_followed_through_helpers_branches_and_parts() -> None:
    source = """
def save(new):
    verb = "a.create" if new else "a.change"
    audit.record(actor=None, verb=verb)
    _note(None, "b.pause")
    _note(None, verb="b.resume")
    _set("colour")

def _note(actor, verb, **rest):
    record_many(actor=actor, verb=verb)

def _set(field):
    record(verb=f"c.set_{field}")
"""
    assert verbs_recorded(source) == {"a.create", "a.change", "b.pause", "b.resume", "c.set_colour"}


def test_words_differ_and_an_unknown_verb_keeps_its_code() -> None:
    words = [said for verbs in WORDS.values() for said in verbs.values()]
    assert sorted(words) == sorted(set(words))
    assert (words_for("job.submit"), words_for("old.verb")) == ("Submitted a job", "old.verb")
    assert choices(["quota.set", "old.verb"]) == [
        ("Limits", [("quota.set", "Set a limit")]),
        ("Other", [("old.verb", "old.verb")]),
    ]
