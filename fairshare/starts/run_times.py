"""Samples how long jobs still run, from the run times of other jobs that resemble them.

Long jobs end last. So while a cluster is young, or its jobs become longer, those that have ended are the short ones,
and what they ran for is too little to expect of others. Therefore jobs that have not ended count as censored: they run
for longer than they have run so far (product-limit estimate: Kaplan, Meier, JASA 1958).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from fairshare.model import Bools, Floats, Ints

# Before a cluster has a history, run times have a log-logistic distribution: half are shorter than MEDIAN seconds, and
# SHAPE makes it so wide that one in ten exceeds 11 times the median. Its tail is a power law, so what has run for long
# is expected to run for long.
MEDIAN, SHAPE = 1800.0, 0.9
# Run times that owners expect are more precise: one in ten exceeds 3 times the expected time.
SHAPE_OF_EXPECTED = 2.0
# A group of jobs is asked with probability n / (n + CONCENTRATION), where n is the number of its jobs that ran for
# longer than the job has run so far. Otherwise the next wider group is asked.
CONCENTRATION = 3.0
SHORTEST = 1.0


@dataclass(frozen=True, slots=True)
class _Group:
    """The run times of similar jobs.

    - `seconds` (H,): how long each ran, ascending.
    - `survival` (H,): the estimated fraction of jobs that run for longer than that.
    """

    seconds: Floats
    survival: Floats

    @classmethod
    def of(cls, seconds: Floats, ended: Bools) -> Self:
        """Returns the group of jobs that ran for `seconds` (H,), ascending, an end before a job that has not ended."""
        at_risk = np.arange(len(seconds), 0, -1, dtype=np.float64)
        survival: Floats = (1 - ended / at_risk).cumprod()
        return cls(seconds, survival)

    def longer(self, elapsed: float) -> int:
        """Returns the number of jobs that ran for longer than `elapsed` seconds."""
        return len(self.seconds) - int(np.searchsorted(self.seconds, elapsed, side="right"))

    def total(self, elapsed: float, chance: float) -> float | None:
        """Returns the run time of a job that runs for longer than `elapsed`, which a fraction `chance` of such jobs
        exceeds; None if that is longer than all that is known."""
        first = len(self.seconds) - self.longer(elapsed)
        beyond = float(self.survival[first - 1]) if first else 1.0
        place = int(np.searchsorted(-self.survival, -chance * beyond, side="right"))
        return float(self.seconds[place]) if place < len(self.seconds) else None


@dataclass(frozen=True, slots=True)
class PastRunTimes:
    """Run times of jobs, by groups: for each level, from the narrowest to the widest, each group.

    Groups of one level are numbers that identify for example jobs with the same user and command.
    """

    levels: tuple[dict[int, _Group], ...]

    @classmethod
    def of(cls, seconds: Floats, groups: Ints, ended: Bools) -> Self:
        """Returns the run times `seconds` (H,) in the groups `groups` (H, L), whose columns go from narrow to wide.

        `ended` (H,): whether the job has ended. Others have run for `seconds` so far.
        """
        levels: list[dict[int, _Group]] = []
        for level in range(groups.shape[1]):
            if not len(seconds):
                levels.append({})
                continue
            order = np.lexsort((~ended, seconds, groups[:, level]))
            names, first = np.unique(groups[order, level], return_index=True)
            parts = zip(np.split(seconds[order], first[1:]), np.split(ended[order], first[1:]), strict=True)
            levels.append({name: _Group.of(*part) for name, part in zip(names.tolist(), parts, strict=True)})
        return cls(tuple(levels))

    def remaining(
        self,
        groups: Ints,
        elapsed: Floats,
        chance: np.random.Generator,
        *,
        expected: Floats | None = None,
    ) -> Floats:
        """Returns one sample of the seconds that each job still runs, given that it has already run for `elapsed`
        seconds.

        - `groups` (J, L): the groups of each job, as in `of`.
        - `elapsed` (J,): seconds that each job has held GPUs so far.
        - `expected` (J,): total seconds that the owner expects, NaN where unknown. Groups do not matter for such a job.
        """
        count = len(elapsed)
        told = np.full(count, np.nan) if expected is None else expected
        median = np.where(np.isnan(told), MEDIAN, told)
        shape = np.where(np.isnan(told), SHAPE, SHAPE_OF_EXPECTED)
        draws = 1 - chance.random(count)  # in (0, 1]
        choice = chance.random((count, len(self.levels), 2))
        least, known = elapsed.copy(), np.full(count, np.nan)
        for job in np.flatnonzero(np.isnan(told)).tolist():
            for level, of_level in enumerate(self.levels):
                group = of_level.get(int(groups[job, level]))
                longer = 0 if group is None else group.longer(least[job])
                if group is None or choice[job, level, 0] >= longer / (longer + CONCENTRATION):
                    continue
                total = group.total(least[job], 1 - choice[job, level, 1])
                if total is not None:
                    known[job] = total
                    break
                least[job] = group.seconds[-1]  # what a wider group knows of such long jobs
        # Draws from the log-logistic distribution above `least`, by its survival function.
        beyond = 1 / (1 + (least / median) ** shape)
        unknown = median * np.maximum(1 / (draws * beyond) - 1, 0.0) ** (1 / shape)
        left: Floats = np.maximum(np.where(np.isnan(known), unknown, known) - elapsed, SHORTEST)
        return left
