"""Tests of the order in which each account wants its jobs to run."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fairshare.policies.gandiva_fair.job_order import JobOrder, wanted_order
from tests.fairshare.build import Account, Job, snapshot

JOBS = st.lists(st.builds(Job, st.integers(0, 2), priority=st.integers(0, 1)), min_size=1, max_size=9)


@given(JOBS, st.data())
def test_removing_jobs_from_an_order_gives_the_order_of_the_others(
    jobs: list[Job], data: st.DataObject
) -> None:
    given_ = snapshot([(0, 8)], [Account(), Account(), Account()], jobs)
    gone = np.array(data.draw(st.lists(st.booleans(), min_size=len(jobs), max_size=len(jobs))))
    order = wanted_order(given_.jobs, given_.accounts, given_.settings)
    found = JobOrder.of(given_.jobs, order, np.ones(len(jobs), dtype=bool), given_.settings).without(gone)
    right = JobOrder.of(given_.jobs, order, ~gone, given_.settings)
    assert found.listed == found.jobs.tolist() == right.listed
    assert found.account.tolist() == right.account.tolist()
    assert found.level_end.tolist() == right.level_end.tolist()
    assert (found.begin, found.end) == (right.begin, right.end)
