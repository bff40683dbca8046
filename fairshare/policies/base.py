"""Defines the interface of scheduling policies (`Policy`), and how a policy declares its options (`option`).

In each round, a policy receives a view of the cluster (fairshare.model.Snapshot) and returns a plan
(fairshare.model.Decision): which gangs run on which nodes until the next round. Later, it gets a report on the GPU time
that accounts received. What it must remember for later rounds is its *state*. The driver (fairshare.driver) calls the
policy and validates its plans.

Sizes of arrays: T accounts (all teams and users of the ticket tree), K generations (GPU types).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from enum import StrEnum
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, get_args, get_origin, get_type_hints

import numpy as np

from fairshare.model import Bools, Decision, Floats, Snapshot

# Named arrays of shape (T,) or (T, K), in the order of the view's accounts and generations. Callers store each value by
# account and generation, and put 0 where an account or a generation is new. All policies use the same names for debts:
# `total` (T,) GPU-seconds, or `owed` (T, K) where a debt is paid back on its own generation.
State: TypeAlias = Mapping[str, Floats]


class Need(StrEnum):
    """Something that the scheduler provides only for policies that ask for it.

    - `RATES`: the measured speeds of jobs on generations.
    - `OWN_ORDER`: which accounts let their jobs take turns by the GPU time that each job has had.
    - `ATTAINED`: the GPU-seconds that each job has had, by generation.
    - `RECLAIM`: rounds within a quantum may stop gangs, to take surplus back for accounts that lack guaranteed GPUs.
      Without this need, these rounds only fill free GPUs.
    """

    RATES = "rates"
    OWN_ORDER = "own_order"
    ATTAINED = "attained"
    RECLAIM = "reclaim"


@dataclass(frozen=True, slots=True)
class Happened:
    """A report to the policy about the time since its last plan: its length in seconds, the GPU time that accounts
    received in it, and the shares of accounts in that plan.

    All arrays are (T, K): one row for each account of the view, one column for each generation.
    """

    seconds: float
    received: Floats  # GPU-seconds that leaves held, without GPUs that only they wanted
    share: Floats  # GPUs by the last plan
    guaranteed: Floats  # GPUs by the last plan; 0 where the policy guarantees none
    corrected: Floats  # GPU-seconds by which earlier `received` were too large (or, if negative, too small)

    @property
    def active(self) -> Bools:
        """Returns which accounts had a share of some generation in the last plan, as a mask (T,)."""
        active: Bools = np.any(self.share > 0, axis=1)
        return active


class Policy(Protocol):
    """A version of a scheduling policy, together with values of its options.

    Its methods are pure functions, apart from caches. The policy does not keep its state (what it must remember for
    later rounds): the state is an argument and a result of the methods.
    """

    name: ClassVar[str]
    version: ClassVar[int]
    needs: ClassVar[frozenset[Need]]
    options_type: ClassVar[type[Any]]  # a frozen dataclass whose fields are made by `option`

    def __init__(self, options: Any) -> None:
        """Creates the policy with the given options. `options` is an instance of the dataclass `options_type`."""

    @property
    def options(self) -> Any: ...

    def start(self, view: Snapshot) -> State:
        """Returns the state with which the policy makes its first plan.

        `view.accounts.owed` has the GPU-seconds that the previous policy still owed each account. It is zero if there
        was no other policy.
        """

    def observe(self, state: State, happened: Happened, view: Snapshot) -> State:
        """Returns the next state, in which each account is charged the GPU time that it received.

        - `state`: the state so far.
        - `happened`: the report with the GPU time. It can contain time of accounts that no longer have jobs in `view`.
        """

    def decide(self, state: State, view: Snapshot, random: np.random.Generator) -> Decision:
        """Returns the plan: which gangs run on which nodes until the next round.

        `random` is the only source of randomness: with the same arguments, the plan is always the same.
        """

    def divide(self, view: Snapshot) -> Floats:
        """Returns each account's share before trades, in GPUs of each generation, as an array (T, K).

        `decide` begins with these shares. They are not the entitlements, which are the same for all policies
        (`fairshare.entitlement.entitlements`).
        """


class InvalidOption(ValueError):
    """Raised when a policy has no option of the given name, or does not accept the given value. The message says what
    is accepted."""

    def __init__(self, option: str, problem: str) -> None:
        super().__init__(f"{option}: {problem}")
        self.option, self.problem = option, problem


@dataclass(frozen=True, slots=True)
class Option:
    """A description of one option of a policy: its name, type, default and explanation, and the accepted values."""

    name: str
    kind: type  # bool, float, int or str
    default: Any
    doc: str
    choices: Sequence[str] = ()  # the accepted values if `kind` is str
    least: float | None = None
    most: float | None = None

    def read(self, value: object) -> Any:
        """Returns `value`, converted to the type of the option. Raises InvalidOption if the option does not accept the
        value."""
        if self.choices:
            if value not in self.choices:
                raise InvalidOption(self.name, f"must be one of {', '.join(self.choices)}, not {value!r}")
            return value
        if self.kind is bool or isinstance(value, bool):
            if self.kind is not bool or not isinstance(value, bool):
                raise InvalidOption(self.name, f"must be {_KINDS[self.kind]}, not {value!r}")
            return value
        if not isinstance(value, int | float) or (self.kind is int and value != int(value)):
            raise InvalidOption(self.name, f"must be {_KINDS[self.kind]}, not {value!r}")
        if not np.isfinite(value) or not (
            (self.least is None or value >= self.least) and (self.most is None or value <= self.most)
        ):
            raise InvalidOption(self.name, f"must be {self.bounds}, not {value:g}")
        return self.kind(value)

    @property
    def bounds(self) -> str:
        """Returns the accepted range of a number in words, such as "from 0 to 1" or "at least 0"."""
        if self.least is not None and self.most is not None:
            return f"from {self.least:g} to {self.most:g}"
        return f"at least {self.least:g}" if self.least is not None else f"at most {self.most:g}"


_KINDS: Mapping[type, str] = {bool: "true or false", float: "a number", int: "a whole number"}


def option(default: Any, doc: str, *, least: float | None = None, most: float | None = None) -> Any:
    """Returns a dataclass field that declares an option. It is used in the options dataclass of a policy.

    - `doc`: the explanation of the option.
    - `least` and `most`: the smallest and the greatest number that is accepted. None means no limit.
    """
    return field(default=default, metadata={"doc": doc, "least": least, "most": most})


def options_of(policy: type[Policy]) -> list[Option]:
    """Returns descriptions of all options of a policy, in the order in which its options dataclass declares them."""
    hints = get_type_hints(policy.options_type)
    found: list[Option] = []
    for one in fields(policy.options_type):
        hint = hints[one.name]
        choices = get_args(hint) if get_origin(hint) is Literal else ()
        default = None if one.default is MISSING else one.default
        found.append(Option(one.name, str if choices else hint, default, choices=choices, **one.metadata))
    return found


def read_options(policy: type[Policy], given: Mapping[str, object]) -> Any:
    """Returns an instance of the policy's options dataclass.

    `given` maps the names of options to values. Options that are not in `given` get their defaults. Raises
    InvalidOption if an option does not exist or does not accept its value.
    """
    known = {one.name: one for one in options_of(policy)}
    for name in given:
        if name not in known:
            raise InvalidOption(
                name,
                f"{policy.name} has no option with this name. Available options: {', '.join(known) or 'none'}",
            )
    return policy.options_type(**{name: known[name].read(value) for name, value in given.items()})
