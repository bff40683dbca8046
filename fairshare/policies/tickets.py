"""Contains what all versions of gandiva_fair have in common: their options, and a cache of the division of the
cluster."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

from fairshare.model import Floats, Snapshot
from fairshare.policies.base import option
from fairshare.policies.unchanged import divides_alike


class HasShare(Protocol):
    """A division of the cluster among accounts. It depends neither on what accounts are owed nor on where gangs run."""

    @property
    def share(self) -> Floats:
        """Returns each account's share of each generation in GPUs, as an array (T, K)."""


Division = TypeVar("Division", bound=HasShare)

ORDERING = "How the next account is chosen: in turns by tickets (stride), or at random by tickets (lottery)"
MEMORY = "The most GPU time that an account can be owed: what its share earns in this many seconds"


@dataclass(frozen=True, slots=True)
class Options:
    """The options of gandiva_fair: ordering, trading, and how long GPU time that is owed to accounts is remembered."""

    ordering: Literal["stride", "lottery"] = option("stride", ORDERING)
    trading: bool = option(True, "Teams trade GPU time across GPU types when both sides gain")
    pricing: Literal["between", "second_price"] = option(
        "between",
        "How the price of a trade is set: as the geometric mean of the seller's speed-up and the buyer's speed-up"
        " (between), or as the second-highest speed-up among all teams that trade (second_price)",
    )
    least_gain: float = option(
        1.05, "Minimum ratio of the buyer's speed-up to the seller's speed-up for a trade", least=1.0
    )
    memory: float = option(3600.0, MEMORY, least=0.0)


class ByTickets(ABC, Generic[Division]):
    """A base class for policies that first divide the cluster among accounts, and then pick gangs.

    The division depends neither on what accounts are owed nor on where gangs run, so that it can be reused.
    """

    options_type: ClassVar[type[Any]] = Options

    def __init__(self, options: Any) -> None:
        self._options = options
        self._last: tuple[Snapshot, Division] | None = None  # the last view and its division

    @property
    def options(self) -> Any:
        return self._options

    def divide(self, view: Snapshot) -> Floats:
        seen = self._seen(view, view.accounts.owed)
        return self._divide(replace(seen, settings=replace(seen.settings, trading=False))).share

    @abstractmethod
    def _divide(self, seen: Snapshot) -> Division:
        """Divides the cluster of a view among accounts and returns the division. Subclasses implement this."""

    def _division(self, seen: Snapshot) -> Division:
        """Returns the division of the cluster in a view. Reuses the last division if nothing that it depends on has
        changed."""
        if self._last is None or not divides_alike(seen, self._last[0]):
            self._last = seen, self._divide(seen)
        return self._last[1]

    def _seen(self, view: Snapshot, owed: Floats) -> Snapshot:
        """Returns the view with the policy's own options as settings, and with `owed` (T, K) as the time that accounts
        are owed."""
        chosen: Mapping[str, Any] = asdict(self._options)
        return replace(
            view,
            accounts=replace(view.accounts, owed=owed),
            settings=replace(view.settings, **chosen),
        )
