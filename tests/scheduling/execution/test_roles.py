"""Jobs with roles are placed, limited and billed by their GPUs, and workers without GPUs run beside others."""

from __future__ import annotations

import pytest

from scheduling.backends.base import Gang
from scheduling.execution.operations import WAIT_FOR_MPIRUN, describe_gang
from scheduling.jobs.submitting import submit_job
from scheduling.models import HeldGpu, Job
from scheduling.spec.job_spec import JobSpec, SpecError
from tests.scheduling.world import World, start, world

pytestmark = pytest.mark.django_db(transaction=True)
ROLES = [
    {"name": "launcher", "gpus_per_worker": 0, "command": "go", "ends_job": True},
    {"name": "chief", "variables": {"LR": "2"}},
    {"name": "ps", "workers": 3, "gpus_per_worker": 0, "environment": "jupyter"},
    {"name": "worker", "workers": 3},
]


@pytest.fixture
def lab() -> World:
    made = world(v100=4)
    made.node("v100-1", made.people.v100, 4)
    return made


def submitted(lab: World, **fields: object) -> Job:
    spec = JobSpec.parse({"name": "a", "command": "train", "variables": {"LR": "1", "X": "y"}} | fields)
    people = lab.people
    return submit_job(actor=people.bob, tenant=people.astro, cluster=lab.cluster, spec=spec)


def started(lab: World, job: Job) -> Gang:
    lab.fill()
    lab.carry_out()
    return describe_gang(lab.lease(job), JobSpec.stored(job.spec), 1000)


def test_only_workers_with_gpus_are_placed_and_billed(lab: World) -> None:
    job = submitted(lab, gpus_per_worker=2, roles=[ROLES[0], ROLES[1], ROLES[3]])
    gang = started(lab, job)
    assert (job.workers, job.gpus_per_worker) == (4, 2)
    assert lab.lease(job).gpus == 8
    assert set(HeldGpu.objects.filter(lease__job=job).values_list("rank", flat=True)) == {0, 1, 2, 3}
    assert [len(worker.gpu_indices) for worker in gang.workers] == [2, 2, 2, 2, 0]
    assert gang.workers[4].node in {worker.node for worker in gang.workers[:4]}
    assert job.worker_names == ["chief 0", "worker 0", "worker 1", "worker 2", "launcher 0"]
    assert (gang.leader, job.leading_rank) == (4, 4)


def test_workers_without_gpus_are_spread_over_the_nodes_of_the_gang(lab: World) -> None:
    gang = started(lab, submitted(lab, gpus_per_worker=4, roles=[{"name": "worker", "workers": 2}, ROLES[0]]))
    assert [worker.node for worker in gang.workers] == ["v100-0", "v100-1", "v100-0"]
    gang = describe_gang_of(lab, [{"name": "worker", "workers": 2}, {**ROLES[2], "environment": ""}])
    assert sorted(worker.node for worker in gang.workers[2:]) == ["v100-0", "v100-0", "v100-1"]


def describe_gang_of(lab: World, roles: list[dict[str, object]]) -> Gang:
    """Returns the gang of a job that no node has room for now, on the GPUs of the job before it."""
    lease = lab.holding("running")[0]
    spec = JobSpec.parse({"name": "b", "command": "train", "gpus_per_worker": 4, "roles": roles})
    return describe_gang(lease, spec, 1000)


def test_what_a_role_leaves_out_is_as_in_the_job(lab: World) -> None:
    gang = started(lab, submitted(lab, roles=[{**ROLES[2], "environment": "python"}, *ROLES[:2]]))
    by_name = {role.name: role for role in gang.roles}
    assert [role.name for role in gang.roles] == ["chief", "ps", "launcher"]
    assert [by_name[name].command[2] for name in ("chief", "ps", "launcher")] == ["train", "train", "go"]
    assert [by_name[name].environment_name for name in ("chief", "ps")] == ["", "python"]
    assert [by_name[name].environment["LR"] for name in ("chief", "ps")] == ["2", "1"]
    assert by_name["chief"].environment["X"] == "y"
    assert [by_name[name].ends_job for name in ("chief", "launcher")] == [False, True]


def test_workers_of_an_mpi_job_wait_for_mpirun(lab: World) -> None:
    gang = started(lab, submitted(lab, workers=3, launch="mpi"))
    assert [role.name for role in gang.roles] == ["launcher", "worker"]
    assert [role.waits_for_mpirun for role in gang.roles] == [False, True]
    assert gang.roles[1].command == WAIT_FOR_MPIRUN
    assert (gang.is_mpi, gang.leader) == (True, 0)


def test_a_job_without_roles_stays_as_it_is(lab: World) -> None:
    job = start(lab, workers=2)
    gang = describe_gang(lab.lease(job), JobSpec.stored(job.spec), 1000)
    assert (gang.roles, gang.leader, gang.is_mpi, len(gang.workers)) == ([], 0, False, 2)


def test_an_unknown_environment_of_a_role_is_refused_by_name(lab: World) -> None:
    with pytest.raises(SpecError) as refused:
        submitted(lab, roles=[ROLES[1], {**ROLES[2], "environment": "conda", "cpu": 2.0}])
    assert "conda is not an environment of this cluster" in refused.value.problems["roles.1.environment"]
    assert "leave cpu out" in refused.value.problems["roles.1.cpu"]
