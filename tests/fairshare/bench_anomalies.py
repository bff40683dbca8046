"""Measures how long the anomaly analysis of one week takes with two processes.

Usage: `python -m tests.fairshare.bench_anomalies [TENANTS JOBS]`.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
from collections import Counter
from time import perf_counter

from fairshare.counterfactual.anomalies import Analysis, Findings
from tests.fairshare.week import week

TENANTS, JOBS, PROCESSES = 100, 50_000, 2
_analysis: list[Analysis] = []


def _of(tenant: int) -> Findings:
    return _analysis[0].of(tenant)


def main(tenants: int, jobs: int) -> None:
    start = perf_counter()
    past = week(tenants, jobs, seed=1)
    made = perf_counter()
    sys.stdout.write(f"made a week of {tenants} tenants and {jobs} jobs in {made - start:.0f} s\n")
    _analysis.append(Analysis(past))
    causes: Counter[str] = Counter()
    judged = too_large = 0
    with multiprocessing.get_context("fork").Pool(PROCESSES) as pool:
        for done, found in enumerate(pool.imap_unordered(_of, range(tenants)), 1):
            causes.update(str(one.cause) for one in found.anomalies)
            judged, too_large = judged + found.judged, too_large + found.too_large
            if done * 10 % tenants == 0 or done == tenants:
                sys.stdout.write(f"  {done} of {tenants} tenants after {perf_counter() - made:.0f} s\n")
                sys.stdout.flush()
        pool.close()
        pool.join()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = used.ru_utime + used.ru_stime
    sys.stdout.write(
        f"analysed in {perf_counter() - made:.0f} s by {PROCESSES} processes, with {cpu:.0f} s of CPU:"
        f" {judged} jobs judged,"
        f" {too_large} too large, {causes.total()} anomalies"
        f" ({', '.join(f'{count} {cause}' for cause, count in causes.most_common())})\n"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]) if len(sys.argv) > 2 else (TENANTS, JOBS))
