"""Puts values in place of `{name}` in texts, as sweeps and templates do.

In a command the value is quoted for the shell. Where quoting is not enough, a template is refused
(`why_not_in_command`), and a sweep if one of its values would be read as something else there (`misread_in`).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TypeAlias

Value: TypeAlias = "str | int | float"

# After one of these, the shell may read quotes in other ways than `_places` does.
UNCLEAR = ("`", "<<", "((", "[[", "$'", '$"')
UNCLEAR_IN_QUOTES = ("$(", "${")
BEFORE_WORD = " \t\n;&|()"
BEFORE_NUMBER = BEFORE_WORD + "}0123456789"


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
    for name, why, _ in _doubtful(command, names):
        return (
            f"contains {{{name}}} {why}; its value would not stay one word there. Write it without"
            " quotes, as a word of its own"
        )
    return ""


Misread: TypeAlias = Callable[[str], bool]


def misread_in(command: str, names: Collection[str]) -> list[tuple[str, str, Misread]]:
    """Returns each `{name}` that stands where some values would be read as something else than a part of one word.

    With it come the place, in words, and a function that says of the text of a value whether it is such a value.
    Everywhere, also inside quotes and in a script that another shell reads, a text that needs no quotes stays what it
    is.
    """
    found = {(name, why): misread for name, why, misread in _doubtful(command, names)}
    return [(name, why, misread) for (name, why), misread in found.items()]


def _needs_quotes(text: str) -> bool:
    return shlex.quote(text) != text


def _doubtful(command: str, names: Collection[str]) -> Iterator[tuple[str, str, Misread]]:
    """Yields each `{name}` that does not stand bare: the name, the place, and which values are misread there."""
    places = list(_places(command))
    for found in pattern(names).finditer(command) if names else ():
        if found["escaped"]:
            continue
        start, end = found.span()
        before, follows = command[max(start - 1, 0) : start], command[end : end + 1]
        if why := places[start]:
            yield found["name"], why, _needs_quotes
        # As in `2>file`: a number alone is the number of a file.
        elif follows in ("<", ">") and (not before or before in BEFORE_NUMBER):
            yield found["name"], f"directly before {follows}", str.isdecimal


def _places(command: str) -> Iterator[str]:
    """Yields, for each character of a shell command, where it stands; "" where a quoted text stays one word."""
    quote, unclear, is_escaped, is_comment, begins_word = "", "", False, False, True
    for at, char in enumerate(command):
        if not unclear and quote != "'" and not is_comment:
            marks = UNCLEAR_IN_QUOTES + UNCLEAR if quote else UNCLEAR
            unclear = next((f"after {mark}" for mark in marks if command.startswith(mark, at)), "")
        if char == "#" and begins_word and not (quote or is_escaped):
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
        # A backslash at the end of a line neither begins nor ends a word.
        if not command.startswith("\\\n", at - 1 if is_escaped else at):
            begins_word = char in BEFORE_WORD and not (quote or is_escaped)
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
