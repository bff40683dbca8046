"""Fetches the repository that a spec names, stores its files as an upload of the team, and records the commit."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from django.conf import settings

from accounting.core.errors import NotAllowed, Refused
from accounting.models import Membership, Tenant, User
from scheduling.core.code_archives import HEADERS, pack_archive
from scheduling.core.git_fetch import Source, fetch
from scheduling.jobs.code import bounds, upload_code
from scheduling.jobs.secrets import text_of_secret
from scheduling.spec.job_spec import JobSpec, SpecError

P = ParamSpec("P")
T = TypeVar("T")


def fetches_code(action: Callable[P, T]) -> Callable[P, T]:
    """Decorates an action with a `spec`, so that code in a repository is fetched before the action's transaction.

    The action then gets a spec with the commit and the upload. Its other arguments `actor`, and `tenant`, `schedule` or
    `service`, say who fetches for which team.
    """

    @wraps(action)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        given: dict[str, Any] = kwargs
        spec = given.get("spec")
        if isinstance(spec, JobSpec) and spec.code is not None and spec.code.is_unfetched:
            about: Any = given.get("tenant") or given.get("schedule") or given.get("service")
            tenant = about if isinstance(about, Tenant) else about.tenant
            given["spec"] = with_code_fetched(actor=given["actor"], tenant=tenant, spec=spec)
        return action(*args, **kwargs)

    return called


def with_code_fetched(*, actor: User, tenant: Tenant, spec: JobSpec) -> JobSpec:
    """Returns the spec with the commit that its repository has now, and with the upload that holds this commit's files.

    Returns it unchanged if there is nothing to fetch. Raises SpecError if the repository cannot be fetched, and
    NotAllowed unless the actor is a member of the team.
    """
    code = spec.code
    if code is None or not code.is_unfetched:
        return spec
    if not Tenant.objects.visible_to(actor, role=Membership.Role.MEMBER).filter(pk=tenant.pk).exists():
        raise NotAllowed(f"Only members of {tenant.name} may submit jobs there.")
    token = ""
    if code.secret:
        try:
            token = text_of_secret(owner=actor, tenant=tenant, said=code.secret)
        except SpecError as error:
            raise SpecError({"code.secret": "; ".join(error.problems.values())}) from None
    limits = bounds()
    try:
        found = fetch(
            Source(code.git, code.commit or code.ref, code.folder, token),
            team=tenant.pk,
            to_private=settings.FAIRLOT_GIT_TO_PRIVATE,
            hosts=settings.FAIRLOT_GIT_HOSTS,
            most=limits.unpacked + HEADERS * limits.files,
        )
        # A repository is fetched unpacked, so what was sent is not limited again.
        packed = pack_archive("The repository", found.tar, limits.for_unpacked())
        made = upload_code(actor=actor, tenant=tenant, packed=packed)
    except Refused as error:
        raise SpecError({"code": error.message}) from None
    fetched = code.model_copy(update={"commit": found.commit, "upload": made.digest})
    return spec.model_copy(update={"code": fetched})
