"""Who goes next: gang-aware stride, or a lottery.

Each account takes part once for each generation, with the gang that it would run there next. A draw
gives each of these turns a number, and the lowest is next. Numbers grow by the GPU time of the gangs
picked divided by the account's share: evenly in stride scheduling, by chance in a lottery.
"""

from __future__ import annotations

from enum import Enum

import numpy as np

from fairshare.model import Floats, Settings


class Standing(Enum):
    """What a gang is doing when it waits for its turn on a generation."""

    WAITING = 0
    RUNNING = 1  # on that very generation
    OVERTAKEN = 2  # waiting, while the same account runs jobs there that it wants less


class Stride:
    """Stride scheduling (Waldspurger and Weihl 1995) of gangs, as in Gandiva_fair (EuroSys '20).

    An account's *pass* is for how many seconds of its share it is ahead of what it is owed; the number
    of its turn is the pass, less a patience with what stands to be lost. A gang that does not fit is
    skipped but keeps its pass, so that it sinks to the front and finds the whole generation before it.
    """

    def __init__(self, owed: Floats, share: Floats, settings: Settings) -> None:
        """`owed` in GPU-seconds and `share` in GPUs, both (T, K)."""
        self._quantum, self._switch_cost = settings.quantum, settings.switch_cost
        self._claims: list[list[bool]] = (share > 0).tolist()
        # Accounts without a share are compared as if each had one GPU.
        weight = np.where(share > 0, share, 1.0)
        self._weight: list[list[float]] = weight.tolist()
        self._pass: list[list[float]] = (-owed / weight).tolist()
        self._patience = {
            Standing.WAITING: 0.0,
            # What runs goes on while the others are behind by less than a switch would cost.
            Standing.RUNNING: settings.switch_cost,
            # Jobs of its own that fit while it did not keep its account from falling behind, so it
            # would never get to the front: it comes before all whose passes are within a few quanta.
            Standing.OVERTAKEN: settings.switch_cost + 2 * settings.quantum,
        }

    def has_claim(self, account: int, generation: int) -> bool:
        """Whether the account takes part; those that do not come after all those that do."""
        return self._claims[account][generation]

    def number(self, account: int, generation: int, gpus: int, standing: Standing, since: float) -> float:
        """The number of a turn with a gang of `gpus` GPUs, given when the lowest number was `since`."""
        return self._pass[account][generation] - self._patience[standing]

    def charge(self, account: int, generation: int, gpus: int) -> None:
        """The account was given a gang's GPUs for a quantum."""
        self._pass[account][generation] += gpus * self._quantum / self._weight[account][generation]

    def prefers(self, account: int, generation: int, present: int, gpus: int) -> bool:
        """Whether moving a running gang of `gpus` GPUs away from its `present` generation is worth its cost.

        A turn more or less there is the common back and forth of turns; only what is beyond counts.
        """
        if not self._claims[account][present]:
            return True
        passes = self._pass[account]
        turn = gpus * self._quantum / self._weight[account][present]
        return passes[generation] + turn + self._switch_cost < passes[present]


class Lottery(Stride):
    """Lottery scheduling (Waldspurger and Weihl 1994) of gangs, drawn again from the seed by anyone.

    The chance to be drawn next is proportional to share / GPUs of the gang, so that the expected GPU time
    is proportional to the share. What an account is owed adds compensation tickets, and what it has had
    ahead of time takes tickets away: so luck evens out, and large gangs that did not fit get their time.

    Numbers are arrival times of independent Poisson processes at these rates: the earliest arrival is the
    winner of exactly this draw, and since the processes have no memory the rest need not be drawn anew.
    """

    def __init__(self, owed: Floats, share: Floats, settings: Settings, seed: int) -> None:
        super().__init__(owed, share, settings)
        tickets = np.maximum(share + owed / settings.quantum, 0.0)
        claims = (share > 0) & (tickets > 0)
        self._claims = claims.tolist()
        self._tickets: list[list[float]] = np.where(claims, tickets, 1.0).tolist()
        self._chance = np.random.Generator(np.random.PCG64(seed))

    def number(self, account: int, generation: int, gpus: int, standing: Standing, since: float) -> float:
        return since + float(self._chance.exponential()) * gpus / self._tickets[account][generation]


def draw_of(owed: Floats, share: Floats, settings: Settings, seed: int) -> Stride:
    """The draw that the settings ask for; `seed` decides a lottery."""
    if settings.ordering == "lottery":
        return Lottery(owed, share, settings, seed)
    return Stride(owed, share, settings)


def idle_draw_of(parts: Floats, settings: Settings, seed: int) -> Stride:
    """Who gets what nobody wants who takes part in the sharing: a lottery, as nobody is owed any of it.

    `parts` (T, K): what the tickets of each account are worth among those that want a generation.
    """
    return Lottery(np.zeros_like(parts), parts, settings, seed ^ 1)  # other lots than the round's own
