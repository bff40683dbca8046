"""Samples how long jobs still run, from the run times of earlier jobs that resemble them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from fairshare.model import Floats, Ints

# Before a cluster has a history, run times have a log-logistic distribution: half are shorter than MEDIAN seconds, and
# SHAPE makes it so wide that one in ten exceeds 11 times the median. Its tail is a power law, so what has run for long
# is expected to run for long.
MEDIAN, SHAPE = 1800.0, 0.9
# Run times that owners expect are more precise: one in ten exceeds 3 times the expected time.
SHAPE_OF_EXPECTED = 2.0
# A group of earlier jobs is asked with probability n / (n + CONCENTRATION), where n is the number of its jobs that ran
# for longer than the job has run so far. Otherwise the next wider group is asked.
CONCENTRATION = 3.0
SHORTEST = 1.0


@dataclass(frozen=True, slots=True)
class PastRunTimes:
    """Run times of ended jobs, by groups: for each level, from the narrowest to the widest, the sorted run times of
    each group.

    Groups of one level are numbers that identify for example jobs with the same user and command.
    """

    levels: tuple[dict[int, Floats], ...]

    @classmethod
    def of(cls, seconds: Floats, groups: Ints) -> Self:
        """Returns the run times `seconds` (H,) in the groups `groups` (H, L), whose columns go from narrow to wide."""
        levels: list[dict[int, Floats]] = []
        for level in range(groups.shape[1]):
            if not len(seconds):
                levels.append({})
                continue
            order = np.lexsort((seconds, groups[:, level]))
            names, first = np.unique(groups[order, level], return_index=True)
            parts = np.split(seconds[order], first[1:])
            levels.append(dict(zip(names.tolist(), parts, strict=True)))
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
        # Draws from the log-logistic distribution above `elapsed`, by its survival function.
        beyond = 1 / (1 + (elapsed / median) ** shape)
        draws = 1 - chance.random(count)  # in (0, 1]
        total = median * np.maximum(1 / (draws * beyond) - 1, 0.0) ** (1 / shape)
        choice = chance.random((count, len(self.levels), 2))
        for level in range(len(self.levels) - 1, -1, -1):  # so that the narrowest group has the last word
            groups_here = self.levels[level]
            for job in np.flatnonzero(np.isnan(told)).tolist():
                found = groups_here.get(int(groups[job, level]))
                if found is None:
                    continue
                first = int(np.searchsorted(found, elapsed[job], side="right"))
                longer = len(found) - first
                if choice[job, level, 0] < longer / (longer + CONCENTRATION):
                    total[job] = found[first + int(choice[job, level, 1] * longer)]
        left: Floats = np.maximum(total - elapsed, SHORTEST)
        return left
