"""What happens to the files of a session that stops, and which of them a session that is started again gets."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from django.conf import settings

from accounting.core.clock import now_from_database
from accounting.core.errors import Refused
from accounting.core.wording import data_size
from accounting.models import Quota, Tenant, User
from scheduling.backends.base import FilesToCopy
from scheduling.limits.usage import GIB, usages_for
from scheduling.models import Cluster, ClusterAccess, Job, JobStorage, Lease, Session

MIB = 2**20
FIELD = "files_from"


@dataclass(frozen=True)
class Kept:
    """Which folders of a session outlive it on a cluster."""

    work: bool  # the folder in which its program starts, and the home folder
    checkpoint: bool  # FAIRLOT_CHECKPOINT_DIR


def kept_on(cluster: Cluster) -> Kept:
    if cluster.backend == Cluster.Backend.LOCAL:
        return Kept(work=True, checkpoint=True)
    has_claim = ClusterAccess.objects.filter(cluster=cluster).exclude(checkpoint_claim="").exists()
    return Kept(work=False, checkpoint=has_claim)


def most_copied() -> int:
    """Returns how many bytes a new session gets at most."""
    return int(settings.FAIRLOT_SESSION_FILES_MIB) * MIB


def files_sentence(job: Job) -> str:
    """Returns what happens to the files of a session that has not ended when it stops."""
    kept = kept_on(job.cluster)
    if kept.work:
        days = settings.FAIRLOT_KEEP_JOB_FILES_DAYS
        until = f"for {days} day{'' if days == 1 else 's'} after it stops" if days else "after it stops"
        return (
            f"Its files are kept {until}. The tab Files of its job shows them, and Start again copies them into"
            " the new session."
        )
    if kept.checkpoint:
        return (
            "Only files in FAIRLOT_CHECKPOINT_DIR and on volumes are kept, and Start again copies those in"
            " FAIRLOT_CHECKPOINT_DIR. All other files in its container are lost."
        )
    return "The files in its container are lost when it stops. Files on volumes are kept."


def source_of(session: Session) -> Session:
    """Returns the session whose files count as those of `session`: itself, or if it never started the one whose files
    it was to get."""
    while session.job.first_started_at is None and session.files_from_id is not None:
        session = Session.objects.select_related("job__tenant", "job__cluster").get(pk=session.files_from_id)
    return session


def why_no_copy(session: Session) -> str:
    """Explains to users why a new session cannot get the files of `session`. Returns "" if it can."""
    job = session.job
    if not job.has_ended or job.leases.filter(state__in=Lease.OPEN).exists():
        return "The session has not ended, and its program may still write its files. Stop it first."
    if job.first_started_at is None:
        return "The session never started, so it has no files."
    if not kept_on(job.cluster).checkpoint:
        return (
            "The files were lost with the session's container, as the cluster has no claim for checkpoints."
        )
    storage = JobStorage.objects.filter(job=job).first()
    is_local = job.cluster.backend == Cluster.Backend.LOCAL
    if (is_local and job.files_removed_at is not None) or (storage and storage.deletion_wanted_at):
        return "The files of the session have been deleted."
    most = most_copied()
    if storage and (size := _size(storage)) > most:
        return (
            f"The files take {data_size(size)}, and at most {data_size(most)} are copied. Put what you need on a"
            " volume, or download it on the tab Files of the earlier session's job."
        )
    return ""


def check_copy(*, actor: User, earlier: Session, tenant: Tenant, cluster: Cluster) -> None:
    """Raises Refused unless a new session of `actor` may get the files of `earlier`.

    Must be called in the transaction that makes the new session: until it ends, nobody can ask for the deletion of the
    files.
    """
    seen = Session.objects.visible_to(actor).select_related("job__cluster").filter(pk=earlier.pk).first()
    if seen is None:
        raise Refused(f"There is no session {earlier.pk}, or you may not see it.", FIELD)
    if seen.job.tenant_id != tenant.pk or seen.job.cluster_id != cluster.pk:
        raise Refused("Files are copied only within the same team and cluster.", FIELD)
    storage, _ = JobStorage.objects.select_for_update().get_or_create(job=seen.job)
    if why := why_no_copy(seen):
        raise Refused(why, FIELD)
    more = Decimal(_size(storage)) / GIB
    quotas = Quota.objects.filter(kind=Quota.Kind.STORAGE, at_limit=Quota.AtLimit.BLOCK)
    if cluster.backend == Cluster.Backend.LOCAL and any(
        usage.is_exceeded(more) for usage in usages_for(quotas, tenant, actor, now=now_from_database())
    ):
        raise Refused(
            f"A copy of the files ({data_size(_size(storage))}) would exceed the limit on the space for files of"
            " jobs. Start without them, or delete files on the page Storage.",
            FIELD,
        )


def files_to_copy(job: Job) -> FilesToCopy | None:
    """Returns the files that the session of `job` gets before its program starts; None if it gets none."""
    if job.kind != Job.Kind.SESSION:
        return None
    session = Session.objects.select_related("files_from").filter(pk=job.pk).first()
    if session is None or session.files_from is None:
        return None
    return FilesToCopy(
        job_id=session.files_from.pk,
        limit_bytes=most_copied(),
        # A home folder has what belongs to a user alone, such as a history of commands.
        with_home=session.files_from.owner_id == job.owner_id,
    )


def _size(storage: JobStorage) -> int:
    """Returns how many bytes of the measured files a copy would take."""
    return sum(int(storage.parts.get(part, 0)) for part in ("checkpoint", "work", "home"))
