"""Puts values in place of `{name}` in texts, as sweeps and templates do.

In a command the value is quoted for the shell. `why_not_in_command` finds the places where quoting is not enough.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Mapping
from typing import TypeAlias

Value: TypeAlias = "str | int | float"

# After one of these, the shell may read quotes in other ways than `_places` does.
UNCLEAR = ("`", "<<", "((", "[[", "$'", '$"')
UNCLEAR_IN_QUOTES = ("$(", "${")
BEFORE_WORD = " \t\n;&|()"


def pattern(names: Collection[str]) -> re.Pattern[str]:
    """Returns a pattern that finds `{name}` (as the group `name`) and `{{name}}` (as the group `escaped`).

    `${name}`, which is a variable of the shell, is not found.
    """
    either = "|".join(map(re.escape, sorted(names)))
    return re.compile(rf"\{{\{{(?P<escaped>{either})\}}\}}|(?<!\$)\{{(?P<name>{either})\}}")


def render(command: str, texts: Mapping[str, str]) -> str:
    """Returns the command with each `{name}` replaced by the text of that name, quoted for the shell.

    Only names in `texts` count. `{{name}}` becomes `{name}`. All other braces stay unchanged, among them `${name}`,
    which is a variable of the shell.
    """

    def put(found: re.Match[str]) -> str:
        escaped, name = found["escaped"], found["name"]
        return f"{{{escaped}}}" if escaped else shlex.quote(texts[name])

    return pattern(texts).sub(put, command) if texts else command


def escape(command: str, names: Collection[str]) -> str:
    """Returns the text from which `render` makes `command` again, whatever the values of `names` are."""
    return pattern(names).sub(_doubled, command) if names else command


def _doubled(found: re.Match[str]) -> str:
    """Returns a found `{name}` as `{{name}}`, and `{{name}}` as `{{{name}}}`."""
    return f"{{{found[0]}}}"


def insert(text: str, texts: Mapping[str, str]) -> str:
    """Returns a text that no shell reads, with each `{name}` replaced by the text of that name, without quotes."""

    def put(found: re.Match[str]) -> str:
        escaped, name = found["escaped"], found["name"]
        return f"{{{escaped}}}" if escaped else texts[name]

    return pattern(texts).sub(put, text) if texts else text


def names_in(text: str, names: Collection[str]) -> set[str]:
    """Returns those of `names` that the text contains as `{name}`."""
    return {found["name"] for found in pattern(names).finditer(text) if found["name"]} if names else set()


UNKNOWN = re.compile(r"(?<![${])\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)\}(?!\})", re.ASCII)


def unknown_in(text: str, names: Collection[str]) -> list[str]:
    """Returns the names that stand as `{name}` in the text but are not in `names`, so that `render` leaves them."""
    found = (each["name"] for each in UNKNOWN.finditer(text))
    return list(dict.fromkeys(name for name in found if name not in names))


def text_of(value: Value) -> str:
    """Returns the value as variables and commands contain it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else repr(value)


def why_not_in_command(command: str, names: Collection[str]) -> str:
    """Explains which `{name}` stands where a quoted value could be read as something else than one word; "" if none.

    Such places are inside quotes and comments, after a backslash, directly before < and >, and everywhere after a
    backtick, a here document, an arithmetic expression, or a substitution inside double quotes.
    """
    places = list(_places(command))
    for found in pattern(names).finditer(command) if names else ():
        if found["escaped"]:
            continue
        follows = command[found.end() : found.end() + 1]
        if why := places[found.start()] or (f"directly before {follows}" if follows in ("<", ">") else ""):
            return (
                f"contains {{{found['name']}}} {why}; its value would not stay one word there. Write it without"
                " quotes, as a word of its own"
            )
    return ""


def _places(command: str) -> Iterator[str]:
    """Yields, for each character of a shell command, where it stands; "" where a quoted text stays one word."""
    quote, unclear, is_escaped, is_comment = "", "", False, False
    for at, char in enumerate(command):
        if not unclear and quote != "'" and not is_comment:
            marks = UNCLEAR_IN_QUOTES + UNCLEAR if quote else UNCLEAR
            unclear = next((f"after {mark}" for mark in marks if command.startswith(mark, at)), "")
        if not (quote or is_escaped) and char == "#" and (at == 0 or command[at - 1] in BEFORE_WORD):
            is_comment = True
        yield unclear or (
            "in a comment"
            if is_comment
            else "inside quotes"
            if quote
            else "after a backslash"
            if is_escaped
            else ""
        )
        if is_comment:
            is_comment = char != "\n"
        elif is_escaped:
            is_escaped = False
        elif char == "\\" and quote != "'":
            is_escaped = True
        elif quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
