"""The base class of policies that divide the cluster by tickets, and the options of gandiva_fair.

These policies work in two steps. First they divide the cluster: each account gets a share of the GPUs. Then they pick
the gangs that run until the next round, according to these shares.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

from fairshare.model import Floats, Snapshot
from fairshare.policies.base import option
from fairshare.policies.unchanged import divides_alike


class HasShare(Protocol):
    """The result of dividing the cluster among accounts.

    A division does not depend on the GPU time that accounts are owed, nor on where gangs run now. It can therefore be
    reused in later rounds.
    """

    @property
    def share(self) -> Floats:
        """Returns each account's share of each generation in GPUs, as an array (T, K)."""


Division = TypeVar("Division", bound=HasShare)

ORDERING = "How the next account is chosen: in turns by tickets (stride), or at random by tickets (lottery)"
MEMORY = "The most GPU time that an account can be owed: what its share earns in this many seconds"


@dataclass(frozen=True, slots=True)
class Options:
    """The options of gandiva_fair: how accounts take turns, whether and how they trade, and how long owed GPU time is
    remembered."""

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
    """A base class of policies that first divide the cluster among accounts, and then pick gangs.

    A subclass implements `_divide` and decides which gangs run. This class keeps the last division. It is computed
    again only if something that it depends on has changed.
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
        """Divides the cluster among accounts and returns the division. Subclasses implement this.

        `seen`: the view with the policy's own options as settings.
        """

    def _division(self, seen: Snapshot) -> Division:
        """Returns the division of the cluster in the view `seen`. Reuses the last division if it is still valid."""
        if self._last is None or not divides_alike(seen, self._last[0]):
            self._last = seen, self._divide(seen)
        return self._last[1]

    def _seen(self, view: Snapshot, owed: Floats) -> Snapshot:
        """Returns the view with the policy's own options as settings, and with `owed` in place of what accounts are
        owed.

        `owed` (T, K): GPU-seconds of each generation that each account is owed.
        """
        chosen: Mapping[str, Any] = asdict(self._options)
        return replace(
            view,
            accounts=replace(view.accounts, owed=owed),
            settings=replace(view.settings, **chosen),
        )
