"""Validates text from users: whether PostgreSQL can store it, and whether it can be a name or one line of a file."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from math import isfinite

import idna

from accounting.core.wording import fixed

# Invisible characters in the Unicode categories letter and mark: fillers, joiners, vowels that are never drawn.
UNSEEN = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
# Format characters. A name may contain them only where its script needs them.
NON_JOINER, JOINER = "\u200c", "\u200d"
VARIATION = re.compile("[\u180b-\u180d\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef]")
VISIBLE = frozenset("LNPS")  # first letters of Unicode categories: letters, numbers, punctuation, symbols
# All line breaks of str.splitlines, the other control characters, and tabs.
BREAKS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
SURROGATES = re.compile("[\ud800-\udfff]")

MOST_VALUES = 200_000  # in one document; 1000 job specs have fewer values
DEEPEST = 40  # levels of nesting; the deepest valid specification has fewer than ten
MOST = 2**63 - 1  # the largest value of a bigint column

VISIBLE_NAME = "visible characters on one line, with ordinary spaces between them"


def why_not_storable(text: str) -> str:
    """Returns the reason why PostgreSQL cannot store the text; an empty string if PostgreSQL can store it."""
    if "\0" in text:
        return "must not contain zero bytes (U+0000)"
    if SURROGATES.search(text):
        return "must not contain lone surrogates (U+D800 to U+DFFF), which are half characters"
    return ""


def why_no_name(name: str) -> str:
    """Returns the reason why `name` is not a valid name; an empty string if `name` is valid. Does not check the length.

    A name must not contain control or format characters, because these hide, reverse or break the text around them.
    Joiner characters are allowed where Arabic and Indic scripts (RFC 5892, appendix A) or emoji need them.
    """
    if not any(is_visible(char) for char in name):
        return f"needs at least one visible character (accepted: {VISIBLE_NAME})"
    if name != name.strip():
        return f"must not begin or end with a space (accepted: {VISIBLE_NAME})"
    for place, char in enumerate(name):
        if not _may_be_in_a_name(name, place):
            called = unicodedata.name(char, "")
            shown = f"U+{ord(char):04X}{f' ({called})' if called else ''}"
            return f"must not contain the invisible or control character {shown} (accepted: {VISIBLE_NAME})"
    return ""


def is_visible(char: str) -> bool:
    """Returns whether the character is visible when it stands alone."""
    return unicodedata.category(char)[0] in VISIBLE and char not in UNSEEN


def one_line(text: str) -> str:
    """Returns the text with each run of line breaks, tabs and other control characters replaced by one space."""
    return BREAKS.sub(" ", text)


def _may_be_in_a_name(name: str, place: int) -> bool:
    char = name[place]
    if char == " " or is_visible(char):
        return True
    if char in (JOINER, NON_JOINER):
        return _joins_as_its_script_does(name, place)
    if VARIATION.fullmatch(char):  # selects how the previous character is drawn
        return place > 0 and is_visible(name[place - 1])
    return unicodedata.category(char)[0] == "M" and char not in UNSEEN


def _joins_as_its_script_does(name: str, place: int) -> bool:
    if not 0 < place < len(name) - 1:
        return False
    if name[place] == JOINER and _is_emoji_part(name[place - 1]) and _is_emoji_part(name[place + 1]):
        return True
    try:
        return idna.core.valid_contextj(name, place)
    except ValueError:  # the installed idna library does not know the character
        return False


def _is_emoji_part(char: str) -> bool:
    """Returns whether an emoji may contain the character next to a zero-width joiner (U+200D).

    This is true for symbols, skin tones and the emoji variation selector. The joiner combines several characters into
    one emoji.
    """
    return unicodedata.category(char) in {"So", "Sk"} or char == "\ufe0f"


def not_storable(data: object) -> tuple[tuple[str, ...], str] | None:
    """Returns (path, reason) for the first value in JSON or YAML data that cannot be stored; None if all can be stored.

    Checks texts, keys, numbers (finite, at most 64 bits), the number of values, and the nesting depth. The function is
    not recursive, because deeply nested data from a sender could exceed Python's recursion limit.
    """
    if why := _why_not(data):
        return (), why
    path: list[object] = []  # path of the mapping or list whose entries are being checked
    levels = [_entries(data)]
    seen = 0
    while levels:
        entry = next(levels[-1], None)
        if entry is None:
            levels.pop()
            del path[-1:]
            continue
        key, value = entry
        seen += 1
        if seen > MOST_VALUES:
            return _place(path[:1]), f"must not contain more than {fixed(MOST_VALUES)} values"
        if isinstance(key, str) and (why := why_not_storable(key)):
            return _place(path), f"has an invalid key: a key {why}"
        if why := _why_not(value):
            return _place([*path, key]), why
        if len(path) >= DEEPEST:
            return _place(path[:1]), f"must not be nested more than {DEEPEST} levels deep"
        if isinstance(value, dict | list):
            path.append(key)
            levels.append(_entries(value))
    return None


def _entries(value: object) -> Iterator[tuple[object, object]]:
    """Returns an iterator over the (key, value) pairs of a mapping, or over the (index, value) pairs of a list.

    For any other value, returns an empty iterator.
    """
    if isinstance(value, dict):
        return iter(value.items())
    return iter(enumerate(value)) if isinstance(value, list) else iter(())


def _place(keys: Iterable[object]) -> tuple[str, ...]:
    return tuple(map(str, keys))


def _why_not(value: object) -> str:
    if isinstance(value, str):
        return why_not_storable(value)
    if isinstance(value, bool):
        return ""
    if isinstance(value, int) and not -MOST - 1 <= value <= MOST:
        return f"must be a number from {-MOST - 1} to {MOST}"
    if isinstance(value, float) and not isfinite(value):
        return "must be a finite number"
    return ""
