"""Actions on volumes that operators grant to teams, and the mounts of volumes in jobs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from django.db import transaction

from accounting.access import audit
from accounting.access.permissions import require
from accounting.actions.checks import refused_if_taken
from accounting.core.errors import Refused
from accounting.models import Tenant, User
from scheduling.backends.base import BackendError, Mount
from scheduling.clusters.backend_factory import local_places
from scheduling.clusters.isolation import isolation_in
from scheduling.core import pubsub
from scheduling.models import Cluster, ClusterAccess, Job, JobVolume, Volume
from scheduling.spec.attachments import NAME, NAME_IN_WORDS
from scheduling.spec.job_spec import JobSpec, SpecError

CLAIM = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


@transaction.atomic(durable=True)
def grant_volume(
    *,
    actor: User | None,
    cluster: Cluster,
    name: str,
    source: str,
    read_only: bool = True,
    tenant: Tenant | None = None,
) -> Volume:
    """Allows jobs of `tenant` in `cluster` to mount `source` under the name `name`. `tenant` None means every team.

    `source` is the name of a PersistentVolumeClaim, which need not exist yet; for local clusters it is the path of a
    folder. Raises NotAllowed unless the actor is an operator or admin. Raises Refused, with the name of the field, for
    invalid values.
    """
    require(actor, "volume.grant")
    name, source = name.strip(), source.strip()
    if not NAME.fullmatch(name):
        raise Refused(f"A volume's name must have {NAME_IN_WORDS}.", "name")
    if cluster.backend == Cluster.Backend.LOCAL:
        source = _folder(cluster, source, read_only=read_only)
    else:
        _check_claim(cluster, source)
    volume = Volume(cluster=cluster, tenant=tenant, name=name, source=source, read_only=read_only)
    whom = tenant.name if tenant else "all teams"
    taken = f"A volume named {name} for {whom} already exists. Withdraw that volume before you use its name again."
    with refused_if_taken(taken, "name"):
        volume.save(force_insert=True)
    audit.record(actor=actor, verb="volume.grant", target=volume, tenant=tenant, after=_told(volume))
    pubsub.publish(f"cluster:{cluster.pk}")
    return volume


@transaction.atomic(durable=True)
def withdraw_volume(*, actor: User | None, volume: Volume) -> None:
    """Withdraws a volume: new attempts cannot mount it, and running attempts keep it until they end.

    Does nothing if the volume is withdrawn already.
    """
    require(actor, "volume.grant")
    there = Volume.objects.select_for_update(of=("self",)).filter(pk=volume.pk).first()
    if there is None:
        return
    audit.record(actor=actor, verb="volume.withdraw", target=there, tenant=there.tenant, before=_told(there))
    there.delete()
    pubsub.publish(f"cluster:{there.cluster_id}")


def find_volumes(*, tenant: Tenant, cluster: Cluster, spec: JobSpec, lock: bool = False) -> dict[str, Volume]:
    """Returns the volumes that a spec names, by name. A volume of the team takes precedence over one of all teams.

    Raises SpecError if a volume is missing. If `lock` is True, the volumes cannot be withdrawn until the transaction
    ends.
    """
    if not spec.volumes:
        return {}
    may = Volume.objects.for_jobs_of(tenant, cluster)
    among = may.filter(name__in=[one.name for one in spec.volumes])
    if lock:
        among = among.select_for_update(of=("self",), no_key=True)
    found: dict[str, Volume] = {}
    for volume in among:
        if volume.tenant_id or volume.name not in found:
            found[volume.name] = volume
    if missing := [one.name for one in spec.volumes if one.name not in found]:
        there = ", ".join(sorted(set(may.values_list("name", flat=True)))) or "none"
        raise SpecError(
            {
                "volumes": f"{missing[0]} is not granted to {tenant.name} in {cluster.name}; available volumes: {there}"
            }
        )
    return found


def note_volumes(job: Job, found: Mapping[str, Volume]) -> None:
    """Links `job` to the volumes in `found`, by their names in the spec.

    The job then keeps these volumes, even if other volumes get the same names later.
    """
    JobVolume.objects.bulk_create(
        JobVolume(job=job, name=name, volume=volume) for name, volume in found.items()
    )


def volumes_of(job: Job, spec: JobSpec) -> list[Mount]:
    """Returns the mounts of a job's volumes. Raises BackendError if a volume was withdrawn since the job was
    submitted."""
    if not spec.volumes:
        return []
    allowed = Volume.objects.for_jobs_of(job.tenant, job.cluster).values("pk")
    named = JobVolume.objects.filter(job=job, volume__in=allowed).select_related("volume")
    found = {row.name: row.volume for row in named}
    if missing := [one.name for one in spec.volumes if one.name not in found]:
        raise BackendError(
            f"the volume {missing[0]} was withdrawn from {job.tenant.name}; submit the job again with another volume"
        )
    return [
        Mount(one.name, one.place, found[one.name].source, found[one.name].read_only) for one in spec.volumes
    ]


def _folder(cluster: Cluster, source: str, *, read_only: bool) -> str:
    """Returns the absolute path of a folder on the portal's machine, with symbolic links resolved.

    Raises Refused if the folder does not exist, if its path is too long, or if jobs are not allowed to mount it. Also
    raises Refused if `read_only` is True and the cluster cannot mount folders read-only.
    """
    isolation = isolation_in(cluster)
    if read_only and not (isolation and isolation.namespaces):
        why = isolation.why_no_namespaces if isolation else "no job can run on this cluster now"
        raise Refused(
            f"{cluster.name} cannot mount folders read-only ({why}). Grant the volume read-write, and protect the "
            "folder by its file permissions.",
            "read_only",
        )
    if not source.startswith("/") or not Path(source).is_dir():
        raise Refused("Enter the absolute path of an existing folder on the portal's machine.", "source")
    folder = Path(source).resolve()
    if why := local_places().why_no_volume(folder):
        raise Refused(why, "source")
    if len(str(folder)) > Volume._meta.get_field("source").max_length:  # type: ignore[operator]
        raise Refused("The folder's path is too long.", "source")
    return str(folder)


def _check_claim(cluster: Cluster, source: str) -> None:
    if not CLAIM.fullmatch(source):
        raise Refused(
            "A PersistentVolumeClaim's name may only contain lower-case letters, digits, hyphens and dots.",
            "source",
        )
    access = ClusterAccess.objects.filter(cluster=cluster).first()
    if access is not None and access.checkpoint_claim == source:
        raise Refused(
            "This PersistentVolumeClaim contains the checkpoints of all jobs, so it cannot be granted.",
            "source",
        )


def _told(volume: Volume) -> dict[str, object]:
    return {
        "cluster": volume.cluster.name,
        "source": volume.source,
        "read_only": volume.read_only,
        "for": volume.tenant.name if volume.tenant else "all teams",
    }
