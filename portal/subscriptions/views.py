"""Views that subscribe users to reports by mail. The pages of the reports contain the forms."""

from __future__ import annotations

from django.contrib import messages
from django.http import Http404, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.utils.http import urlencode
from django.views.decorators.http import require_POST

from accounting import actions
from accounting.actions.subscriptions import may_have
from accounting.models import ReportSubscription, Tenant, User
from portal.forms.posting import tell
from portal.subscriptions.report_mails import page_of
from portal.user_request import UserRequest

Report = ReportSubscription.Report


@require_POST
def subscribe(request: UserRequest) -> HttpResponse:
    report = request.POST.get("report", Report.STATEMENT)
    tenant, slug = None, request.POST.get("team", "")
    if slug or report == Report.STATEMENT:
        tenant = get_object_or_404(Tenant.objects.visible_to(request.user), slug=slug)
    # every user may see these reports; they are empty for users without a team
    is_shown = report in ReportSubscription.OF_TEAMS
    if report not in Report.values or not (is_shown or may_have(request.user, report, tenant)):
        raise Http404
    by, label = (request.POST.get(name, "") for name in ("by", "label"))
    tell(
        request,
        lambda: actions.subscribe_to_report(
            actor=request.user,
            report=report,
            tenant=tenant,
            rhythm=request.POST.get("rhythm", ""),
            form=request.POST.get("form", ""),
            by=by,
            label=label,
        ),
        lambda made: f"Subscribed to “{made.name}”: {made.get_rhythm_display()}, {made.get_form_display()}.",
    )
    return _back(request.user, report, tenant, by=by, label=label)


@require_POST
def unsubscribe(request: UserRequest, pk: int) -> HttpResponse:
    own = ReportSubscription.objects.of(request.user).select_related("tenant")
    subscription = get_object_or_404(own, pk=pk)
    actions.unsubscribe_from_report(actor=request.user, subscription=subscription)
    messages.success(request, f"Unsubscribed from “{subscription.name}”.")
    told = subscription
    return _back(request.user, told.report, told.tenant, by=told.by, label=told.label)


def _back(user: User, report: str, tenant: Tenant | None, *, by: str, label: str) -> HttpResponse:
    """Redirects to the report's page, or to the page of statements if the user may no longer see the report.

    `by`: the grouping on the report's page; "" for none. `label`: the key of the label, for the grouping by label.
    """
    if not may_have(user, report, tenant):
        report, tenant, by, label = Report.STATEMENT, None, "", ""
    told = {"team": tenant.slug if tenant else "", "by": by, "label": label}
    query = urlencode({name: text for name, text in told.items() if text})
    return redirect(f"{page_of(report)}{'?' if query else ''}{query}")
