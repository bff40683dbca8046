"""What a row of a list has in a column, as plain values. The tag `work_rows` renders them.

A text is shown without change, a number in digits, a time relative to now, None as a dash, and a list as its values
one after another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scheduling.models import Pipeline, Sweep


@dataclass(frozen=True)
class Link:
    """A text that leads to an address."""

    text: str
    address: str


@dataclass(frozen=True)
class Label:
    """A chip: a small coloured label with an icon. `tone` and `icon` are as in the tag `chip`."""

    text: str
    tone: str
    icon: str


@dataclass(frozen=True)
class Muted:
    """A text in a weaker colour, beside another one."""

    text: str


@dataclass(frozen=True)
class Code:
    """A text that a program reads."""

    text: str


def chip_of(shown: Sweep | Pipeline, looks: Mapping[str, tuple[str, str]]) -> Label:
    """Returns the chip of the state of a sweep or pipeline. `looks` has the tone and icon of each state."""
    is_cancelling = shown.ended_at is None and shown.state == "cancelled"
    return Label("Cancelling" if is_cancelling else shown.get_state_display(), *looks[shown.state])


def chips_of(shown: Sweep | Pipeline, looks: Mapping[str, tuple[str, str]]) -> list[Label]:
    """Returns the chip of the state, and another one if the last submission was refused."""
    return [chip_of(shown, looks), *([Label("refused", "warn", "alert")] if shown.trouble else [])]


def counts_in_words(counts: Mapping[str, int], labels: Mapping[str, str]) -> str:
    """Returns numbers by state as a text, such as "3 submitted, 1 failed"."""
    return ", ".join(f"{counts[state]} {label.lower()}" for state, label in labels.items() if state in counts)
