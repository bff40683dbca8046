"""Measures, at several loads, how often the anomaly analysis is wrong and how much it finds.

- False anomalies: in histories without faults, the fraction of jobs that the analysis reports as sharing anomalies.
  These fractions are recorded in FALSE_RATES of fairshare.counterfactual.anomalies.
- Found anomalies: how many deliberately delayed jobs the analysis finds.

Usage: `python -m tests.fairshare.bench_false_rate [SEEDS DAYS]`.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections import Counter
from dataclasses import dataclass

from fairshare.counterfactual.anomalies import FALSE_RATES, Analysis, analyse
from fairshare.counterfactual.private import fits
from tests.fairshare.faultless import faultless, wronged
from tests.fairshare.pasts import HOUR

SEEDS, DAYS, PROCESSES = 4, 3, 2
EVERY, BY = 10, 6 * HOUR


@dataclass(frozen=True)
class Measured:
    load: float
    compared: int
    causes: Counter[str]  # causes of anomalies found in faultless histories
    wronged: int
    found: int  # number of the delayed jobs that are found


def measure(load: float, seed: int, days: int) -> Measured:
    history = faultless(seed, load, days=days)
    findings = analyse(history)
    late = wronged(history, EVERY, BY)
    analysis = Analysis(late)
    victims = {
        one.key
        for one in late.jobs
        if one.key % EVERY == 0 and one.attempts and fits(one, analysis.purchase.machines(one.tenant))
    }
    after = {one.key for tenant in range(len(late.parts)) for one in analysis.of(tenant).anomalies}
    return Measured(
        load,
        sum(some.judged for some in findings),
        Counter(str(one.cause) for some in findings for one in some.anomalies),
        len(victims),
        len(victims & after),
    )


def _measure(asked: tuple[float, int, int]) -> Measured:
    return measure(*asked)


def main(seeds: int, days: int) -> None:
    asked = [(load, seed, days) for load, _ in FALSE_RATES for seed in range(1, seeds + 1)]
    with multiprocessing.get_context("fork").Pool(PROCESSES) as pool:
        measured = pool.map(_measure, asked, chunksize=1)
    for load, told in FALSE_RATES:
        some = [one for one in measured if one.load == load]
        compared = sum(one.compared for one in some)
        causes = sum((one.causes for one in some), Counter[str]())
        worst = max(one.causes.total() / one.compared for one in some)
        sys.stdout.write(
            f"load {load:.0%}: {causes.total()} of {compared} jobs found ({causes.total() / compared:.2%}, at worst"
            f" {worst:.2%}; the page says {told:.1%}): {dict(causes)};"
            f" {sum(one.found for one in some)} of {sum(one.wronged for one in some)} wronged jobs found\n"
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]) if len(sys.argv) > 2 else (SEEDS, DAYS))
