"""The buttons and links beside the explanation why a job waits. A button changes the job, a link leads to a page."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlencode

from django.urls import reverse

from accounting.models import User
from scheduling.jobs.explain import Explainer
from scheduling.jobs.remedies import Remedy, RemedyCode, RemedyKind, remedies_of, remedies_of_repeats
from scheduling.models import Job


@dataclass(frozen=True, slots=True)
class RemedyLink:
    """A remedy as it is shown. `url` is the page to which it leads; "" if it is a button."""

    remedy: Remedy
    url: str


def links_of(job: Job, user: User, explainer: Explainer) -> list[RemedyLink]:
    """Returns the remedies of a waiting job that are open to `user`. `explainer` has explained the job to this user."""
    found = remedies_of(job, reader=user, explainer=explainer)
    return [RemedyLink(remedy, _url(job, remedy, user)) for remedy in found]


def links_for_repeats(job: Job, user: User) -> list[RemedyLink]:
    """Returns the remedies that are open to `user` for a job that does its work again."""
    return [RemedyLink(remedy, _url(job, remedy, user)) for remedy in remedies_of_repeats(job, reader=user)]


def _url(job: Job, remedy: Remedy, user: User) -> str:
    match remedy.code:
        case _ if remedy.kind is RemedyKind.CHANGE:
            return ""
        case _ if remedy.kind is RemedyKind.CLONE:
            return f"{reverse('submit')}?{urlencode({'clone': job.pk, **remedy.changes})}"
        case RemedyCode.ASK_FOR_LIMIT | RemedyCode.ASK_FOR_TICKETS:
            return reverse("request_new", args=[job.tenant.slug])
        case RemedyCode.SAVE_CHECKPOINTS:
            return f"{reverse('docs_page', args=['jobs'])}#continue-after-a-suspension"
        case RemedyCode.FREEZE_JOBS:
            return reverse("admin_settings")
        case RemedyCode.STOP_SESSION:
            return reverse("session", args=[remedy.target])
        case RemedyCode.SCALE_SERVICE:
            return f"{reverse('service', args=[remedy.target])}#scale"
        case RemedyCode.ASK_MANAGER:
            return reverse("own_limits")
        case RemedyCode.HAND_OVER | RemedyCode.CHANGE_LIMIT:
            page = "admin_tenant" if user.is_admin else "team"
            part = "_limits" if remedy.code is RemedyCode.CHANGE_LIMIT else ""
            return reverse(f"{page}{part}", args=[remedy.team or job.tenant.slug])
    return reverse("admin_nodes")
