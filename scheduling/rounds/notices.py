"""Notices: each notice warns the owner of a replica or session that, after the notice time, a round may suspend it for
other users."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from fairshare import model as fs
from fairshare.guarantees import lent_to
from scheduling.core import pubsub
from scheduling.core.announcing import announce_warning
from scheduling.core.event_texts import sentence_of
from scheduling.leases.causes import Causes
from scheduling.models import Cluster, JobEvent, Lease, ServiceEvent
from scheduling.models.event_codes import EventCode, Message, ServiceEventKind
from scheduling.shares.snapshot import SnapshotIndex

WARNED = ServiceEventKind.WARNED
# Guarantees change with the demand of others, so a job gets at most one warning in the first time. A service gets at
# most one in the second, whichever replica it is about, because each replacement of a replica would be a new warning.
WARNED_EVERY = timedelta(hours=1)
SERVICE_WARNED_EVERY = timedelta(days=1)


def give_notice(
    cluster: Cluster,
    view: fs.Snapshot,
    plan: fs.Decision,
    legend: SnapshotIndex,
    *,
    causes: Causes,
    now: datetime,
) -> None:
    """Begins a notice for each replica or session that will hold GPUs beyond its account's guarantee after the round.
    Ends all other notices.

    - `view`, `plan`: the round's snapshot and decision.
    - `legend`: the primary keys of the jobs and accounts in the snapshot and the decision.
    - `causes`: computes the numbers of GPUs that the warnings contain.

    Runs in the round's transaction.
    """
    if view.jobs.keeps is None:
        return
    lent = {legend.jobs[row]: row for row in np.flatnonzero(lent_to(view, plan)).tolist()}
    Lease.objects.filter(cluster=cluster).on_notice().exclude(job__in=lent).update(notice_since=None)
    begins = Lease.objects.filter(cluster=cluster, job__in=lent, notice_since=None)
    begins = begins.filter(state__in=[Lease.State.RESERVED, Lease.State.STARTING, Lease.State.RUNNING])
    leases = list(begins.select_related("job__tenant", "job__owner", "job__service").defer("job__spec"))
    Lease.objects.filter(pk__in=[lease.pk for lease in leases]).update(notice_since=now)
    ends = now + timedelta(seconds=cluster.notice_seconds)
    _warn([(lease, causes.lent_to(lease.job, lent[lease.job_id])) for lease in leases], now, ends)


def _warn(noticed: Sequence[tuple[Lease, dict[str, Any]]], now: datetime, ends: datetime) -> None:
    jobs = [lease.job_id for lease, _ in noticed]
    known = JobEvent.objects.filter(job__in=jobs, kind=WARNED, at__gt=now - WARNED_EVERY)
    known_jobs = set(known.values_list("job_id", flat=True))
    services = [lease.job.service_id for lease, _ in noticed if lease.job.service_id]
    recent = ServiceEvent.objects.filter(service__in=services, kind=WARNED, at__gt=now - SERVICE_WARNED_EVERY)
    told = set(recent.values_list("service_id", flat=True))
    events, of_services = [], []
    for lease, beyond in noticed:
        job = lease.job
        pubsub.publish(f"job:{job.pk}", f"jobs:{job.tenant_id}")
        if job.pk in known_jobs:
            continue
        said = Message.of(EventCode.CLAIM_WARNED, at=ends.isoformat(), **beyond)
        events.append(JobEvent.of(job, WARNED, said, at=now, epoch=lease.epoch))
        if job.service_id in told:
            continue
        if job.service is not None:
            told.add(job.service.pk)
            of_services.append(
                ServiceEvent(
                    service=job.service, at=now, kind=WARNED, detail={**said.parameters, "replica": job.name}
                )
            )
        # It is part of sharing: managers who want to know it of all jobs of their team set a rule.
        announce_warning(job, "May be suspended", sentence_of(said), topic="claim", at=now, to_managers=False)
    JobEvent.objects.bulk_create(events)
    ServiceEvent.objects.bulk_create(of_services)


def notices_over(cluster: Cluster, now: datetime) -> bool:
    """Returns whether the notice time of any lease has ended since the last round. A fill round may then take the GPUs
    of this lease."""
    last, notice = cluster.last_round_at, timedelta(seconds=cluster.notice_seconds)
    over = Lease.objects.filter(cluster=cluster).on_notice().filter(notice_since__lte=now - notice)
    return last is not None and over.filter(notice_since__gt=last - notice).exists()
