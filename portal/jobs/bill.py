"""The page with a job's bill, which lists each charge to the second. Admins correct the bill here."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any

from django.core.paginator import Paginator
from django.db.models import F
from django.http import HttpResponse
from django.views.decorators.http import require_safe

from accounting.actions import take_back_usage
from accounting.closing.archive import archived_until
from accounting.core.errors import Refused
from accounting.core.name_order import by_name
from accounting.ledger import Payer
from accounting.models import JobDay, LedgerTransaction, Tenant, UsageSegment
from portal.access import permitted, posted_from
from portal.forms.fields import Moment, Row, Text
from portal.forms.form import Form, Values
from portal.forms.posting import perform, show
from portal.jobs import detail
from portal.jobs.views import frame, visible_job
from portal.user_request import UserRequest
from scheduling.models import Job

LINES_PER_PAGE = 100


class CorrectionForm(Form):
    """The form that corrects a bill: which lines to reverse, and optionally which team to bill instead."""

    to = Moment(
        "Correct only lines that begin before",
        step=1,
        help_text="Only lines of the bill that begin before this time are corrected. Leave empty to "
        "include the last line.",
    )
    team = Row(
        "Team that pays for the corrected lines",
        Tenant.objects.active().order_by(*by_name("name")),
        required=False,
        others={"": "nobody"},
    )
    reason = Text("Why", maxlength=500)

    def __init__(self, request: UserRequest | None = None) -> None:
        super().__init__("correct", request)
        self.fields["from"] = Moment(
            "Correct only lines that begin at this time or later",
            step=1,
            help_text="Only lines of the bill that begin at or after this time are corrected. Leave empty "
            "to start with the first line.",
        )
        self.order_fields(["from"])


@require_safe
def bill(request: UserRequest, pk: int) -> HttpResponse:
    return _page(request, shown=visible_job(request, pk))


@permitted("ledger.correct")
@posted_from("job_bill", "pk")
def correct(request: UserRequest, pk: int) -> HttpResponse:
    shown = visible_job(request, pk)
    return perform(
        request,
        CorrectionForm(request),
        lambda values: _take_back(request, shown, values),
        done="The bill has been corrected.",
        to=("job_bill", pk),
        page=partial(_page, shown=shown),
    )


def lines_of(request: UserRequest, shown: Job) -> Any:
    """Returns the lines of the job's bill that the user may see, newest first, including reversed lines."""
    lines = UsageSegment.objects.visible_to(request.user).filter(job_id=shown.pk)
    lines = lines.with_charges().annotate(in_all=F("full_cost"))
    lines = lines.select_related(
        "generation", "tenant", "user", "taken_back__transaction__actor", "class_charge"
    )
    return lines.order_by("-period", "-version")


def archived_of(shown: Job) -> datetime | None:
    """Returns the time before which the lines of the job's bill are archived, or None if no line is archived."""
    until = archived_until()
    before = until and JobDay.objects.filter(job_id=shown.pk, hour__lt=until).exists()
    return until if before else None


def _page(request: UserRequest, *, shown: Job, posted: Form | None = None) -> HttpResponse:
    lines = lines_of(request, shown)
    context = frame(request, shown, "bill") | {
        "cost": detail.cost_of(shown, request.user),
        "archived": archived_of(shown),
        "page": Paginator(lines, LINES_PER_PAGE).get_page(request.GET.get("page")),
        "may_correct": request.user.is_admin
        and UsageSegment.objects.uncorrected().filter(job_id=shown.pk).exists(),
        "correct": CorrectionForm().or_posted(posted),
    }
    return show(request, "jobs/bill.html", context, posted=posted)


def _take_back(request: UserRequest, shown: Job, values: Values) -> Sequence[LedgerTransaction]:
    """Reverses the lines of the bill that begin between the form's two times. An empty time means that there is no
    bound.

    If the form names a team, bills these lines to that team instead. Raises Refused in two cases:

    - The form's start time is empty or earlier than `archived_of`, so that archived lines are included.
    - All lines are already billed to that team.
    """
    begins, ends, team = values["from"], values["to"], values["team"]
    archived = archived_of(shown)
    if archived and (begins is None or begins < archived):
        raise Refused(
            f"The lines billed before {archived:%-d %B %Y} (UTC) are archived and cannot be "
            "corrected. Choose that day or a later time.",
            "from",
        )
    lines = UsageSegment.objects.uncorrected().filter(job_id=shown.pk)
    if begins is not None:
        lines = lines.filter(period__startswith__gte=begins)
    if ends is not None:
        lines = lines.filter(period__startswith__lt=ends)
    lines = lines.select_related("generation", "user")
    if team is not None and not lines.exclude(tenant=team).exists():
        raise Refused(f"All chosen lines are already billed to {team.name}. Choose another team.", "team")
    return take_back_usage(
        actor=request.user,
        segments=list(lines),
        reason=values["reason"],
        payer=Payer(team) if team is not None else None,
    )
