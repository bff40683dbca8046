"""What the versions of gandiva_fair have in common: their options, and what they keep between two decisions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

from fairshare.model import Floats, Snapshot
from fairshare.policies.base import option
from fairshare.policies.unchanged import divides_alike


class HasShare(Protocol):
    """What a policy makes of a view before it looks at debts and places."""

    @property
    def share(self) -> Floats:
        """(T, K) GPUs."""


Division = TypeVar("Division", bound=HasShare)

ORDERING = "Who goes next: in turns by tickets (stride), or by lot with tickets as chances (lottery)"
MEMORY = "Seconds of share up to which a debt is remembered"


@dataclass(frozen=True, slots=True)
class Options:
    """How GPU time is shared."""

    ordering: Literal["stride", "lottery"] = option("stride", ORDERING)
    trading: bool = option(True, "Teams trade GPU time across generations where both gain by it")
    pricing: Literal["between", "second_price"] = option(
        "between", "Price of a trade: between the speed-ups of the two sides, or the second-highest buyer's"
    )
    least_gain: float = option(1.05, "Ratio of speed-ups below which nothing is traded", least=1.0)
    memory: float = option(3600.0, MEMORY, least=0.0)


class ByTickets(ABC, Generic[Division]):
    """A policy that divides the cluster first, which depends neither on debts nor on where gangs run."""

    options_type: ClassVar[type[Any]] = Options

    def __init__(self, options: Any) -> None:
        self._options = options
        self._last: tuple[Snapshot, Division] | None = None  # the last division, and what it is of

    @property
    def options(self) -> Any:
        return self._options

    def divide(self, view: Snapshot) -> Floats:
        seen = self._seen(view, view.accounts.owed)
        return self._divide(replace(seen, settings=replace(seen.settings, trading=False))).share

    @abstractmethod
    def _divide(self, seen: Snapshot) -> Division:
        """Divides the cluster anew."""

    def _division(self, seen: Snapshot) -> Division:
        """The division of what is seen; the last one, as long as nothing has changed that it depends on."""
        if self._last is None or not divides_alike(seen, self._last[0]):
            self._last = seen, self._divide(seen)
        return self._last[1]

    def _seen(self, view: Snapshot, owed: Floats) -> Snapshot:
        """The view with the policy's own options and what accounts are `owed` (T, K)."""
        chosen: Mapping[str, Any] = asdict(self._options)
        return replace(
            view,
            accounts=replace(view.accounts, owed=owed),
            settings=replace(view.settings, **chosen),
        )
