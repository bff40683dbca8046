"""Stores uploads of code for a team's jobs, finds the upload that a spec names, and reads it for a backend."""

from __future__ import annotations

from collections.abc import Iterable

from django.conf import settings
from django.db import transaction
from django.db.models import Sum

from accounting.access import audit
from accounting.core.clock import now_from_database
from accounting.core.errors import NotAllowed, Refused
from accounting.models import Membership, Tenant, User
from scheduling.backends.base import BackendError, CodeArchive
from scheduling.core.code_archives import Bounds, Packed, mebibytes
from scheduling.models import Cluster, CodeUpload, Job, JobCode
from scheduling.spec.job_spec import JobSpec, SpecError

PATHS_SHOWN = 50
# The largest archive that pods get: Kubernetes keeps it as text in a Secret, which may have 1 MiB.
MOST_IN_PODS = 700 * 1024
# The columns of an upload without its content, which is large.
ABOUT = ("tenant_id", "digest", "size", "unpacked", "files", "paths", "uploaded_by_id", "uploaded_at")


def bounds() -> Bounds:
    """Returns the limits on one upload, from the settings."""
    return Bounds(
        sent=settings.FAIRLOT_CODE_LIMIT_BYTES,
        unpacked=settings.FAIRLOT_CODE_UNPACKED_BYTES,
        files=settings.FAIRLOT_CODE_FILES,
    )


@transaction.atomic(durable=True)
def upload_code(*, actor: User, tenant: Tenant, packed: Packed) -> CodeUpload:
    """Stores an upload for the jobs of `tenant` and returns it, without its content. If the team has the same content
    already, that upload is kept for longer.

    Raises NotAllowed if the actor is not a member of the tenant. Raises Refused if the tenant is archived or its
    uploads take too much space.
    """
    if not Tenant.objects.visible_to(actor, role=Membership.Role.MEMBER).filter(pk=tenant.pk).exists():
        raise NotAllowed(f"Only members of {tenant.name} may upload code there.")
    if tenant.archived_at:
        raise Refused(f"{tenant.name} is archived; it accepts no new jobs.", "tenant")
    there = CodeUpload.objects.only(*ABOUT).select_for_update(no_key=True)
    known = there.filter(tenant=tenant, digest=packed.digest).first()
    if known is not None:
        CodeUpload.objects.filter(pk=known.pk).update(uploaded_at=now_from_database())
        return known
    _check_space(tenant, len(packed.content))
    CodeUpload.objects.bulk_create(
        [
            CodeUpload(
                tenant=tenant,
                digest=packed.digest,
                content=packed.content,
                size=len(packed.content),
                unpacked=packed.unpacked,
                files=len(packed.paths),
                paths=list(packed.paths[:PATHS_SHOWN]),
                uploaded_by=actor,
            )
        ],
        ignore_conflicts=True,  # a member may have uploaded the same at this moment
    )
    made = there.get(tenant=tenant, digest=packed.digest)
    after = {"digest": packed.digest, "bytes": len(packed.content), "files": len(packed.paths)}
    audit.record(actor=actor, verb="code.upload", target=made, tenant=tenant, after=after)
    return made


def find_code(
    *, actor: User, tenant: Tenant, cluster: Cluster, spec: JobSpec, lock: bool = False
) -> CodeUpload | None:
    """Returns the upload that a spec names, without its content; None if the spec names none.

    A repository that has not been fetched yet counts as none, but not if `lock` is True: then it is refused.

    An upload of another team counts if the actor is a member of that team: the team of the job then gets its own copy
    of it by `note_code`. Raises SpecError if there is no such upload; the message does not reveal whether another team
    has it. Also raises SpecError if the cluster cannot deliver the upload. If `lock` is True, the upload cannot be
    deleted until the transaction ends.
    """
    if spec.code is None:
        return None
    if spec.code.is_unfetched:
        if not lock:
            return None
        only = "a repository is fetched for single submits only"
        raise SpecError({"code": f"{only}; submit one job, and use its code for the others"})
    among = CodeUpload.objects.visible_to(actor).only(*ABOUT).filter(digest=spec.code.upload)
    if lock:
        among = among.select_for_update(of=("self",), no_key=True)
    found = sorted(among, key=lambda upload: upload.tenant_id != tenant.pk)
    if not found:
        why = (
            "there is no such upload; it may have been deleted because no job used it. Upload the code again"
        )
        raise SpecError({"code.upload": why})
    if why := why_not_in(cluster, found[0]):
        raise SpecError({"code": why})
    return found[0]


def keep_code(*, actor: User, tenant: Tenant, cluster: Cluster, spec: JobSpec) -> None:
    """Checks the upload that a spec names like `find_code`, for a spec that is stored in the caller's transaction.

    Copies an upload of another team for `tenant`, because the retention looks for stored specs of the upload's team.
    """
    found = find_code(actor=actor, tenant=tenant, cluster=cluster, spec=spec, lock=True)
    if found is not None and found.tenant_id != tenant.pk:
        _copy_for(tenant, found)


def keep_upload(*, actor: User, tenant: Tenant, digest: str) -> CodeUpload:
    """Returns the upload of `tenant` with this digest, within the caller's transaction. Copies an upload of another
    team that the actor may use.

    Raises SpecError if there is no such upload.
    """
    among = CodeUpload.objects.visible_to(actor).only(*ABOUT).filter(digest=digest)
    found = sorted(
        among.select_for_update(of=("self",), no_key=True), key=lambda upload: upload.tenant_id != tenant.pk
    )
    if not found:
        raise SpecError({"code.upload": "there is no such upload; upload the code again"})
    return found[0] if found[0].tenant_id == tenant.pk else _copy_for(tenant, found[0])


def why_not_in(cluster: Cluster, upload: CodeUpload) -> str:
    """Explains why jobs of a cluster cannot get the upload. Returns "" if they can."""
    if cluster.backend == Cluster.Backend.LOCAL or upload.size <= MOST_IN_PODS:
        return ""
    return (
        f"the upload has {mebibytes(upload.size)}, but {cluster.name} delivers at most {mebibytes(MOST_IN_PODS)} to its"
        " containers. Leave files out, or put the code into the image or on a volume"
    )


def note_code(tenant: Tenant, found: Iterable[tuple[Job, CodeUpload]]) -> None:
    """Links jobs of `tenant` to their uploads. Copies an upload of another team for this team first."""
    own: dict[int, CodeUpload] = {}
    links = []
    for job, upload in found:
        if upload.pk not in own:
            own[upload.pk] = upload if upload.tenant_id == tenant.pk else _copy_for(tenant, upload)
        links.append(JobCode(job=job, upload=own[upload.pk]))
    if links:
        JobCode.objects.bulk_create(links)


def code_of(job: Job, spec: JobSpec) -> CodeArchive | None:
    """Returns the archive with a job's code for its backend; None if the spec names none. Raises BackendError if the
    upload no longer exists."""
    if spec.code is None:
        return None
    uploads = CodeUpload.objects.filter(uses__job=job)
    row = uploads.values_list("digest", "content").first()
    if row is None:
        raise BackendError("the job's code upload was deleted; submit the job again with a new upload")
    return CodeArchive(digest=row[0], content=bytes(row[1]))


def _copy_for(tenant: Tenant, upload: CodeUpload) -> CodeUpload:
    whole = CodeUpload.objects.get(pk=upload.pk)
    _check_space(tenant, whole.size)
    whole.pk, whole.tenant, whole.uploaded_at = None, tenant, now_from_database()
    CodeUpload.objects.bulk_create([whole], ignore_conflicts=True)
    same = CodeUpload.objects.only(*ABOUT).select_for_update(of=("self",), no_key=True)
    return same.get(tenant=tenant, digest=upload.digest)


def _check_space(tenant: Tenant, more: int) -> None:
    """Raises Refused if the uploads of a team would take more than FAIRLOT_CODE_TEAM_BYTES. Uploads at the same moment
    may exceed it by their sizes."""
    most = settings.FAIRLOT_CODE_TEAM_BYTES
    used = CodeUpload.objects.filter(tenant=tenant).aggregate(sum=Sum("size"))["sum"] or 0
    if used + more > most:
        raise Refused(
            f"The uploads of {tenant.name} take {mebibytes(used)} of {mebibytes(most)}. Uploads are deleted"
            f" {settings.FAIRLOT_KEEP_CODE_DAYS} days after their last use. Put the code into an image or on a volume.",
            "code",
        )
