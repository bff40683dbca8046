"""The interface between a scheduling policy and whatever asks it.

A policy sees a view (fairshare.model.Snapshot) and answers with a plan (fairshare.model.Decision). What it
remembers between two plans is its state. The driver (fairshare.driver) keeps the state, tells the policy what
happened, and validates plans, so that live rounds, previews, forecasts and replays treat all policies alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from enum import StrEnum
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, get_args, get_origin, get_type_hints

import numpy as np

from fairshare.model import Bools, Decision, Floats, Snapshot

# Named arrays of shape (T,) or (T, K), in the order of the view's accounts and generations. Whoever stores a state
# stores each value by account and generation, and puts 0 where an account or a generation is new. What accounts are
# owed has a name for all policies: `total` (T,) GPU-seconds, or `owed` (T, K) where each generation is made good alone.
State: TypeAlias = Mapping[str, Floats]


class Need(StrEnum):
    """What a policy reads of its view that others do without, or how it is asked."""

    RATES = "rates"  # measured speeds of jobs on generations
    OWN_ORDER = "own_order"  # whose jobs take turns by the time that each has had
    ATTAINED = "attained"  # GPU-seconds that each job has had, by generation
    # Rounds between two quanta that take surplus back, where others' only fill what is free.
    RECLAIM = "reclaim"


@dataclass(frozen=True, slots=True)
class Happened:
    """What happened since the last plan. All arrays are (T, K), in the order of the view's accounts."""

    seconds: float
    received: Floats  # GPU-seconds that leaves held; without those that nobody else wanted
    share: Floats  # GPUs of the last plan
    guaranteed: Floats  # GPUs of the last plan; 0 where the policy names none
    corrected: Floats  # GPU-seconds that earlier `received` had too much (or, negative, too little)

    @property
    def active(self) -> Bools:
        """(T,) whether an account had a share in the last plan."""
        active: Bools = np.any(self.share > 0, axis=1)
        return active


class Policy(Protocol):
    """A version of a scheduling policy, with its options. Its methods are pure functions of their arguments."""

    name: ClassVar[str]
    version: ClassVar[int]
    needs: ClassVar[frozenset[Need]]
    options_type: ClassVar[type[Any]]  # a frozen dataclass whose fields are made by `option`

    def __init__(self, options: Any) -> None:
        """`options` is an instance of `options_type`."""

    @property
    def options(self) -> Any: ...

    def start(self, view: Snapshot) -> State:
        """Returns the state before the first plan. `view.accounts.owed` is what another policy left owed, or 0."""

    def observe(self, state: State, happened: Happened, view: Snapshot) -> State:
        """Returns the state after what happened. The rows of accounts without jobs may still have received time."""

    def decide(self, state: State, view: Snapshot, random: np.random.Generator) -> Decision:
        """Returns who runs where until the next plan. Chance comes from `random` alone."""

    def divide(self, view: Snapshot) -> Floats:
        """Returns (T, K) GPUs, the shares of accounts as `decide` would have them before trades.

        What tickets earn is not a policy's to say: see `fairshare.entitlement.entitlements`.
        """


class InvalidOption(ValueError):
    """An option that the policy does not have, or a value that it does not accept; says what is accepted."""

    def __init__(self, option: str, problem: str) -> None:
        super().__init__(f"{option}: {problem}")
        self.option, self.problem = option, problem


@dataclass(frozen=True, slots=True)
class Option:
    """How one option of a policy is set."""

    name: str
    kind: type  # bool, float, int or str
    default: Any
    doc: str
    choices: Sequence[str] = ()  # of a str
    least: float | None = None
    most: float | None = None

    def read(self, value: object) -> Any:
        """Returns the value in the option's own type; raises InvalidOption."""
        if self.choices:
            if value not in self.choices:
                raise InvalidOption(self.name, f"{value!r} is not one of {', '.join(self.choices)}")
            return value
        if self.kind is bool or isinstance(value, bool):
            if self.kind is not bool or not isinstance(value, bool):
                raise InvalidOption(self.name, f"{value!r} is not {_KINDS[self.kind]}")
            return value
        if not isinstance(value, int | float) or (self.kind is int and value != int(value)):
            raise InvalidOption(self.name, f"{value!r} is not {_KINDS[self.kind]}")
        if not np.isfinite(value) or not (
            (self.least is None or value >= self.least) and (self.most is None or value <= self.most)
        ):
            raise InvalidOption(self.name, f"{value:g} is not {self.bounds}")
        return self.kind(value)

    @property
    def bounds(self) -> str:
        """The accepted range in words."""
        if self.least is not None and self.most is not None:
            return f"from {self.least:g} to {self.most:g}"
        return f"at least {self.least:g}" if self.least is not None else f"at most {self.most:g}"


_KINDS: Mapping[type, str] = {bool: "true or false", float: "a number", int: "a whole number"}


def option(default: Any, doc: str, *, least: float | None = None, most: float | None = None) -> Any:
    """A field of an options dataclass."""
    return field(default=default, metadata={"doc": doc, "least": least, "most": most})


def options_of(policy: type[Policy]) -> list[Option]:
    """The options of a policy, in the order of their fields."""
    hints = get_type_hints(policy.options_type)
    found: list[Option] = []
    for one in fields(policy.options_type):
        hint = hints[one.name]
        choices = get_args(hint) if get_origin(hint) is Literal else ()
        default = None if one.default is MISSING else one.default
        found.append(Option(one.name, str if choices else hint, default, choices=choices, **one.metadata))
    return found


def read_options(policy: type[Policy], given: Mapping[str, object]) -> Any:
    """The options dataclass with what is given, and defaults for the rest; raises InvalidOption."""
    known = {one.name: one for one in options_of(policy)}
    for name in given:
        if name not in known:
            raise InvalidOption(
                name, f"{policy.name} has no such option; it has {', '.join(known) or 'none'}"
            )
    return policy.options_type(**{name: known[name].read(value) for name, value in given.items()})
