"""Checks a policy on many random economies (test cases) and counts the promises that it breaks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from fairshare.check.economy import Economy
from fairshare.check.generate import random_economy
from fairshare.check.play import Invalid, PolicyUnderTest
from fairshare.check.played import Played
from fairshare.check.promises import PROMISES, Promise, Verdict
from fairshare.check.shrink import shrink

VALID = "0"  # name of the check that decisions can be carried out


@dataclass(frozen=True)
class Breach:
    """A broken promise: its name and title, a sentence that says how it was broken, and the economy where this
    happened."""

    name: str
    title: str
    why: str
    economy: Economy

    def __str__(self) -> str:
        return f"broken promise {self.name}: {self.title}\n{self.why}\n\nThe economy, as Python code:\n{self.economy}"


@dataclass
class Tally:
    """The results of checking one promise in many economies.

    - `judged`: the number of economies that tested the promise.
    - `broken`: the number of economies in which the policy broke it.
    - `figures`: the measured values, such as GPUs missed. `promise.measure` says what they count.
    """

    promise: Promise
    judged: int = 0
    broken: int = 0
    figures: list[float] = field(default_factory=list)

    def add(self, verdict: Verdict) -> None:
        self.judged += 1
        self.broken += verdict.broken is not None
        if verdict.figure is not None:
            self.figures.append(verdict.figure)

    def __str__(self) -> str:
        promise = self.promise
        said = (
            f"{promise.name:>3}  {promise.title:<70} broken in {self.broken:>5} of {self.judged:>5} economies"
        )
        if self.figures:
            said += f"; {promise.measure}: {min(self.figures):.3g} to {max(self.figures):.3g}"
        return said


def judge(
    economy: Economy, policy: PolicyUnderTest, promises: Sequence[Promise] = PROMISES, *, seed: int = 0
) -> Iterator[tuple[Promise, Verdict]]:
    """Simulates the policy in one economy and yields a pair (promise, verdict) for each promise that the economy tests.

    Raises Invalid if the policy fails or returns a decision that cannot be carried out.
    """
    played = Played.of(economy, policy, seed)
    for promise in promises:
        verdict = promise.judge(played)
        if verdict is not None:
            yield promise, verdict


def breach(
    economy: Economy, policy: PolicyUnderTest, promises: Sequence[Promise] = PROMISES, *, seed: int = 0
) -> Breach | None:
    """Returns the first promise that the policy breaks in the economy, or None if it keeps all of them.

    If the policy fails or a decision cannot be carried out, returns a breach named VALID instead of raising Invalid.
    """
    try:
        for promise, verdict in judge(economy, policy, promises, seed=seed):
            if verdict.broken:
                return Breach(promise.name, promise.title, verdict.broken, economy)
    except Invalid as invalid:
        return Breach(VALID, "every decision can be carried out", str(invalid), economy)
    return None


def smallest(found: Breach, policy: PolicyUnderTest, *, seed: int = 0) -> Breach:
    """Reduces the economy of a breach to a smaller one that breaks the same promise, and returns the new breach.

    Returns `found` itself if the reduced economy yields no breach.
    """
    promises = [promise for promise in PROMISES if promise.name == found.name]

    def broken(economy: Economy) -> Breach | None:
        other = breach(economy, policy, promises, seed=seed)
        return other if other is not None and other.name == found.name else None

    small = shrink(found.economy, lambda economy: broken(economy) is not None)
    return broken(small) or found


def judged(
    policy: PolicyUnderTest, seed: int, economies: int, promises: Sequence[Promise] = PROMISES
) -> tuple[list[Tally], Iterator[Breach]]:
    """Checks a policy on the first `economies` random economies of a seed.

    Returns a pair: a tally for each promise, and an iterator over the breaches. The checks run, and the tallies are
    filled, while the caller consumes the iterator.
    """
    tallies = {promise.name: Tally(promise) for promise in promises}

    def breaches() -> Iterator[Breach]:
        for number in range(economies):
            economy = random_economy(seed, number)
            try:
                for promise, verdict in judge(economy, policy, promises, seed=number):
                    tallies[promise.name].add(verdict)
                    if verdict.broken:
                        yield Breach(promise.name, promise.title, verdict.broken, economy)
            except Invalid as invalid:
                yield Breach(VALID, "every decision can be carried out", str(invalid), economy)

    return list(tallies.values()), breaches()
