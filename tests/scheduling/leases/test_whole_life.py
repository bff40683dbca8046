"""Jobs go from submit to bill on the real local backend and database, with faults in between."""

import os
import signal
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from django.conf import settings

from accounting.core.clock import now_from_database
from accounting.models import UsageSegment
from scheduling.backends.base import Phase
from scheduling.backends.local.files import JobFiles
from scheduling.clusters import backend_factory
from scheduling.clusters.backend_factory import backend_for
from scheduling.core.event_texts import text_of
from scheduling.execution.operations import perform_operations
from scheduling.execution.reconcile import observe, reconcile
from scheduling.jobs.actions import cancel_job
from scheduling.jobs.submitting import submit_job
from scheduling.models import Job, Lease, Operation
from scheduling.models.event_codes import EventCode
from scheduling.spec.job_spec import JobSpec
from scheduling.spec.retries import Retries
from tests.scheduling.world import World, world
from tests.waiting import wait_for

pytestmark = pytest.mark.django_db

# Counts by one per line up to UP_TO, and keeps the count over restarts. At HALF_WAY it waits until `let_go_on` is
# called, so that the test can take its time while the job runs.
COUNTER = """
state=$FAIRLOT_CHECKPOINT_DIR/count
count=$(cat "$state" 2>/dev/null || echo 0)
trap 'echo $count > "$state"; echo saved $count; exit 0' TERM
while [ "$count" -lt "$UP_TO" ]; do
  while [ "$count" = "$HALF_WAY" ] && [ ! -e "$FAIRLOT_CHECKPOINT_DIR/go-on" ]; do sleep 0.05 & wait $!; done
  count=$((count + 1)); echo "step $count"; sleep 0.05 & wait $!
done
echo "done at $count"
"""


@pytest.fixture
def lab(jobs_folder: Path) -> Iterator[World]:
    made = world(v100=2)
    backend_for(made.cluster).prepare()
    yield made
    end_all(made)


def end_all(lab: World) -> None:
    backend = backend_for(lab.cluster)

    def gone() -> bool:
        alive = [item for item in backend.observe() if item.phase is not Phase.ENDED]
        for item in alive:
            backend.stop(job_id=item.job_id, epoch=item.epoch, token=item.token, grace_seconds=0.0)
        return not alive

    wait_for(gone, what="no process of the test is left")


def submit(
    lab: World, owner: str = "bob", *, up_to: int = 3, half_way: int = -1, gpus: int = 1, **fields: object
) -> Job:
    people = lab.people
    tenant = people.bio if owner == "charlie" else people.astro
    spec = JobSpec(
        name=f"count to {up_to}",
        command=fields.pop("command", COUNTER),
        variables={"UP_TO": str(up_to), "HALF_WAY": str(half_way)},
        gpus_per_worker=gpus,
        checkpoint_grace_seconds=fields.pop("grace", 5),
        environment="system",
        **fields,
    )
    return submit_job(actor=getattr(people, owner), tenant=tenant, cluster=lab.cluster, spec=spec)


def work(lab: World) -> None:
    """Does once what Fairlot's worker and watcher do repeatedly: carries out orders and records observations."""
    perform_operations(cluster=lab.cluster, log_limit_bytes=10_000_000)
    observe(lab.cluster)


def until(lab: World, probe: Callable[[], object], what: str = "it") -> None:
    wait_for(lambda: (work(lab), probe())[1], what=what)


def reaches(lab: World, job: Job, state: str) -> None:
    until(
        lab,
        lambda: Job.objects.get(pk=job.pk).state == state,
        f"{job.name} is {state}, not {Job.objects.get(pk=job.pk).state}",
    )


def let_go_on(lab: World, job: Job) -> None:
    """Lets a job's program continue. The program counts, and pauses at the step HALF_WAY until a certain file
    exists."""
    (JobFiles(backend_for(lab.cluster).root, job.pk).folder / "checkpoint" / "go-on").touch()


def log_of(lab: World, job: Job) -> str:
    return backend_for(lab.cluster).read_log(job_id=job.pk, rank=0, offset=0, limit=1_000_000).data.decode()


def test_a_job_runs_to_its_end_and_is_billed_for_the_gpus_it_held(lab: World) -> None:
    job = submit(lab, up_to=3, gpus=2)
    lab.fill()
    reaches(lab, job, Job.State.SUCCEEDED)
    job.refresh_from_db()
    assert (job.exit_code, job.end_reason) == (0, "succeeded")
    assert "done at 3" in log_of(lab, job)
    lease = job.leases.get()
    assert lease.held_from <= lease.running_from <= lease.held_until
    assert float(sum(s.gpu_seconds for s in UsageSegment.objects.filter(job_id=job.pk))) == pytest.approx(
        2 * (lease.held_until - lease.held_from).total_seconds(), abs=1e-5
    )
    # Once the end is booked, the backend no longer reports the gang.
    work(lab)
    assert not backend_for(lab.cluster).observe()


def test_a_failing_job_keeps_its_exit_code(lab: World) -> None:
    job = submit(lab, command="echo broken; exit 7")
    lab.fill()
    reaches(lab, job, Job.State.FAILED)
    job.refresh_from_db()
    assert job.exit_code == 7
    assert "7" in job.end_message


def test_a_program_that_fails_is_started_again_and_goes_on_from_its_checkpoint(lab: World) -> None:
    # Fails with code 75 in its first attempt, after it has saved what it has counted, and while it saves more.
    program = """
        if [ -n "$FAIRLOT_RESUME_FROM" ]; then echo "goes on at $(cat "$FAIRLOT_RESUME_FROM")"; exit 0; fi
        cd "$FAIRLOT_CHECKPOINT_DIR"; echo 5 > step-5.pt; echo 6 > step-6.pt.tmp; exit 75
    """
    retries = Retries(times=1, exit_codes=[75], backoff_seconds=60)
    job = submit(lab, command=program, gpus=2, retries=retries, checkpoint="step-*")
    lab.fill()
    reaches(lab, job, Job.State.SUSPENDED)
    job.refresh_from_db()
    assert (job.failures, job.exit_code) == (1, None)
    lab.fill()
    assert job.leases.count() == 1, "it waits"
    Job.objects.filter(pk=job.pk).update(not_before=now_from_database())
    lab.fill()
    reaches(lab, job, Job.State.SUCCEEDED)
    assert "goes on at 5" in log_of(lab, job)
    [resumed] = job.events.filter(code=EventCode.RESUMED)
    assert (resumed.epoch, text_of(resumed)) == (2, "Resumed from step-5.pt")
    ends = job.leases.order_by("epoch").values_list("end_reason", flat=True)
    assert list(ends) == [Lease.End.FAILED, Lease.End.SUCCEEDED]
    booked = sum(segment.gpu_seconds for segment in UsageSegment.objects.filter(job_id=job.pk))
    held = sum((lease.held_until - lease.held_from).total_seconds() for lease in job.leases.all())
    assert float(booked) == pytest.approx(2 * held, abs=1e-5)


def test_a_preempted_job_goes_on_from_its_checkpoint_and_repeats_nothing(lab: World) -> None:
    job = submit(lab, up_to=40, half_way=20, gpus=2)
    lab.fill()
    reaches(lab, job, Job.State.RUNNING)
    until(lab, lambda: "step 5\n" in log_of(lab, job), "some steps")
    rival = submit(lab, "charlie", up_to=2, gpus=2)
    lab.contest(job)
    reaches(lab, rival, Job.State.SUCCEEDED)
    assert lab.states([job]) == [Job.State.SUSPENDED]
    let_go_on(lab, job)
    lab.fill()
    reaches(lab, job, Job.State.SUCCEEDED)
    steps = [line for line in log_of(lab, job).splitlines() if line.startswith("step ")]
    assert steps == [f"step {n}" for n in range(1, 41)]
    assert job.leases.count() == 2
    leases = list(job.leases.order_by("epoch"))
    assert leases[0].held_until <= leases[1].held_from


def test_frozen_processes_go_on_where_they_stopped_without_a_restart(lab: World) -> None:
    lab.cluster.slicing = "freeze"
    lab.cluster.save()
    job = submit(lab, up_to=40, half_way=20, gpus=2)
    lab.fill()
    reaches(lab, job, Job.State.RUNNING)
    until(lab, lambda: "step 5\n" in log_of(lab, job), "some steps")
    before = workers(job)
    rival = submit(lab, "charlie", up_to=2, gpus=2)
    lab.contest(job)
    reaches(lab, rival, Job.State.SUCCEEDED)
    assert lab.states([job]) == [Job.State.SUSPENDED]
    lab.fill()
    reaches(lab, job, Job.State.RUNNING)
    assert workers(job) == before
    let_go_on(lab, job)
    reaches(lab, job, Job.State.SUCCEEDED)
    steps = [line for line in log_of(lab, job).splitlines() if line.startswith("step ")]
    assert steps == [f"step {n}" for n in range(1, 41)]
    assert "saved" not in log_of(lab, job)


def test_a_cancelled_job_leaves_no_process(lab: World) -> None:
    job = submit(lab, up_to=10_000)
    lab.fill()
    reaches(lab, job, Job.State.RUNNING)
    cancel_job(actor=lab.people.bob, job=job)
    reaches(lab, job, Job.State.CANCELLED)
    assert not running(job)


def test_an_operation_done_twice_starts_one_gang(lab: World) -> None:
    job = submit(lab, up_to=10_000)
    lab.fill()
    perform_operations(cluster=lab.cluster, log_limit_bytes=10_000_000)
    # As if the worker died after it started the gang and before it recorded this.
    Operation.objects.update(done_at=None, not_before=now_from_database())
    perform_operations(cluster=lab.cluster, log_limit_bytes=10_000_000)
    reaches(lab, job, Job.State.RUNNING)
    assert len(workers(job)) == 1


def test_a_start_that_a_dying_worker_had_claimed_is_done_by_the_next(lab: World) -> None:
    job = submit(lab)
    lab.fill()
    Operation.objects.update(attempts=1, not_before=now_from_database() + timedelta(seconds=30))
    assert perform_operations(cluster=lab.cluster, log_limit_bytes=10_000_000) == 0
    Operation.objects.update(not_before=now_from_database())
    reaches(lab, job, Job.State.SUCCEEDED)


def test_a_job_cancelled_before_its_start_was_tried_never_runs(lab: World) -> None:
    job = submit(lab)
    lab.fill()
    cancel_job(actor=lab.people.bob, job=job)
    reaches(lab, job, Job.State.CANCELLED)
    assert log_of(lab, job) == ""


def test_killed_processes_are_closed_when_they_were_last_alive_and_the_job_goes_on(lab: World) -> None:
    job = submit(lab, up_to=10_000)
    lab.fill()
    reaches(lab, job, Job.State.RUNNING)
    first = lab.lease(job)
    for pid in supervisors(job):
        os.kill(pid, signal.SIGKILL)
    reaches(lab, job, Job.State.SUSPENDED)
    first.refresh_from_db()
    assert first.end_reason == "lost"
    assert first.held_until <= now_from_database()
    assert not running(job)
    lab.fill()
    reaches(lab, job, Job.State.RUNNING)
    assert len(workers(job)) == 1


def test_a_new_watcher_adopts_what_still_runs(lab: World) -> None:
    job = submit(lab, up_to=10_000)
    lab.fill()
    reaches(lab, job, Job.State.RUNNING)
    before = set(workers(job))
    backend_factory._backend.cache_clear()
    reconcile(lab.cluster)
    assert lab.states([job]) == [Job.State.RUNNING]
    assert set(workers(job)) == before


def test_processes_without_a_lease_are_stopped(lab: World) -> None:
    """The reconciler stops job processes that have no lease, as can exist after the database was restored to an earlier
    state."""
    job = submit(lab, up_to=10_000)
    lab.fill()
    reaches(lab, job, Job.State.RUNNING)
    Lease.objects.update(state=Lease.State.CLOSED, held_until=now_from_database())
    reconcile(lab.cluster)
    wait_for(lambda: not running(job), what="the stray is gone")


def test_a_gang_unknown_to_the_backend_is_closed_as_lost(lab: World, tmp_path: Path) -> None:
    job = submit(lab)
    lab.fill()
    minute_ago = now_from_database() - timedelta(minutes=1)
    Operation.objects.update(attempts=5, done_at=minute_ago)
    Lease.objects.update(last_seen_at=minute_ago)
    reconcile(lab.cluster)
    job.refresh_from_db()
    assert job.state == Job.State.SUSPENDED
    assert lab.lease(job).end_reason == "lost"


def running(job: Job) -> list[int]:
    """Returns the pids of the job's shells, found by environment variables that only the job's processes have."""
    # Tests that run at the same time may have a job with the same id, but they keep their jobs in other folders.
    return _with(f"FAIRLOT_JOB_ID={job.pk}\0", "UP_TO=", str(settings.FAIRLOT_JOBS_DIR))


def workers(job: Job) -> dict[int, int]:
    """Returns {pid: supervisor's pid} of the processes that the job's supervisor has started.

    These processes are shells that run the job's command. They start child processes for a moment, for example to run
    `sleep`. The children are left out.
    """
    pids = running(job)
    parents = {pid: parent for pid in pids if (parent := _parent(pid)) is not None}
    return {pid: parent for pid, parent in parents.items() if parent not in pids}


def supervisors(job: Job) -> list[int]:
    """Returns the pids of the job's supervisors, which are the parents of its workers."""
    return sorted(set(workers(job).values()))


def _parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except (FileNotFoundError, ProcessLookupError):  # the process has ended
        return None


def _with(*marks: str | bytes) -> list[int]:
    wanted = [mark.encode() if isinstance(mark, str) else mark for mark in marks]
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environ = (entry / "environ").read_bytes()
            name = (entry / "comm").read_text().strip()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if name == "sh" and all(mark in environ for mark in wanted):
            found.append(int(entry.name))
    return sorted(found)
