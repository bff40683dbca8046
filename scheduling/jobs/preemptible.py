"""Changes whether a job is preemptible. A preemptible job takes no share, and runs only on GPUs that no other job
wants."""

from __future__ import annotations

from django.db import transaction

from accounting.access import audit
from accounting.core.clock import now_from_database
from accounting.core.errors import Refused
from accounting.models import User
from scheduling.core.locks import lock_schedule
from scheduling.leases.history import History
from scheduling.models import Job, JobEvent
from scheduling.models.event_codes import EventCode, Message
from scheduling.models.ownership import require_changeable


@transaction.atomic(durable=True)
def set_preemptible(*, actor: User, job: Job, preemptible: bool) -> Job:
    """Sets whether a job is preemptible, from the next round on. Returns the job. Setting the present value changes
    nothing.

    Raises NotAllowed unless the actor is the owner, a manager of the team or an operator. Raises Refused for ended
    jobs, and for replicas, because a replica always has the setting of its service.
    """
    require_changeable(actor, job, "change this job")
    code = EventCode.PREEMPTIBLE if preemptible else EventCode.SHARES_AGAIN
    why = Message.of(code, user=actor.get_username())
    return set_preemptible_within(actor=actor, job=job, preemptible=preemptible, why=why)


def set_preemptible_within(*, actor: User | None, job: Job, preemptible: bool, why: Message) -> Job:
    """Sets whether a job is preemptible, like `set_preemptible`, but within the caller's transaction.

    The caller has checked the permission. `actor` None means that Fairlot makes the change. `why` is the message for
    the job's history.
    """
    lock_schedule(job.cluster_id)
    job = Job.objects.select_related("tenant").get(pk=job.pk)
    if job.preemptible == preemptible:
        return job
    if job.kind == Job.Kind.REPLICA:
        raise Refused("The service decides whether its replicas are preemptible. Change the service.")
    if job.has_ended or job.state == Job.State.CANCELLING:
        raise Refused("The job has ended and cannot be changed.")
    now = now_from_database()
    history = History()
    history.change(job, preemptible=preemptible, reason=0)
    history.note(job, JobEvent.SHARING, why, at=now)
    history.save()
    audit.record(
        actor=actor,
        verb="job.preemptible",
        target=job,
        tenant=job.tenant,
        before={"preemptible": not preemptible},
        after={"preemptible": preemptible},
    )
    return job
