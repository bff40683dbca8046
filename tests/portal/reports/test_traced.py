"""The benchmark imports a published trace, and fails if Fairlot's reports differ from the trace's file."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.core.management.base import CommandError

from portal.management.traced import NAME, bench_trace, compare, counted
from scheduling.models import Cluster
from tests import make

TRACE = """job_id,user,num_gpu,submit_time,iterations,model_name,duration,interval
1,astro,2,0,10,resnet,600,8
2,bio,1,30,10,resnet,4000,8
3,astro,4,60,10,resnet,5,8
4,bio,0,60,10,resnet,50,8
5,astro,1,90,10,resnet,0,8
"""


@pytest.mark.django_db(transaction=True)
def test_a_trace_is_compared_with_what_its_file_says(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    make.user("olga", portal_role="operator")
    told: list[str] = []
    bench_trace(path, told.append, since=make.LONG_AGO)
    assert told[1] == "the reports agree with the trace's file: 3 jobs of 2 teams used 5,220 GPU-seconds"
    cluster = Cluster.objects.get(name=NAME)
    jobs, seconds = counted(path)
    assert seconds == {f"{NAME} astro": 1220, f"{NAME} bio": 4000}
    with pytest.raises(CommandError, match="The GPU time that was billed to the teams differs"):
        compare(cluster, jobs, seconds | {f"{NAME} bio": 3999})
    with pytest.raises(CommandError, match="3 jobs were billed, but the trace's file has 4 jobs"):
        compare(cluster, jobs | {f"{NAME} bio": 2}, seconds)
