"""The list of jobs, the pages of a job, and cancelling a job. Logs are in portal/jobs/log_views.py."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.core.paginator import Paginator
from django.http import Http404, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.functional import SimpleLazyObject
from django.views.decorators.http import require_POST, require_safe

from accounting.access.permissions import may_somewhere
from accounting.core.errors import NotAllowed, Refused
from accounting.core.name_order import by_name
from accounting.core.numbers import read_key
from accounting.core.prepared import Prepared
from accounting.models import Generation, Membership, NotificationRule, Tenant
from accounting.models.tenants import has_role, ids_with_role, sees_every_tenant
from portal.access import posted_from
from portal.forms.fields import Moment, Text
from portal.forms.form import Form
from portal.forms.posting import perform, show, tell
from portal.fragments import INCLUDED, render_page, wanted_part
from portal.jobs import detail
from portal.jobs.columns import COLUMNS, LABEL
from portal.jobs.facets import facets_of
from portal.jobs.failure import failure_of
from portal.jobs.filters import GROUPS, PARAMETERS, JobFilter
from portal.jobs.groups import groupings, groups_of
from portal.jobs.idle import use_of
from portal.jobs.listing import page_of
from portal.jobs.metric_charts import MOST_JOBS
from portal.jobs.remedies import links_of
from portal.jobs.repeated import repeated_of
from portal.lists.choices import choice_of, choosable
from portal.lists.views import opened
from portal.live.topics import topics_of_jobs
from portal.readiness import what_to_do
from portal.user_request import UserRequest
from portal.wording import relative
from scheduling.draining.drained_jobs import nodes_drained_under
from scheduling.idle.actions import snooze_idle
from scheduling.jobs.actions import cancel_job
from scheduling.jobs.explain import Explainer
from scheduling.jobs.preemptible import set_preemptible
from scheduling.jobs.remedies import apply_remedy
from scheduling.jobs.restarts import continuation_of
from scheduling.jobs.run_times import run_time_of
from scheduling.jobs.time_limit import end_by_limit
from scheduling.metrics.progress import reached_by
from scheduling.models import Job, JobEvent, JobLabel, LabelKey
from scheduling.models.jobs import job_in_sight
from scheduling.models.templates import version_in_sight
from scheduling.spec.job_spec import SpecError

EVENTS_PER_PAGE = 100
LEASES_PER_PAGE = 25


@require_safe
def jobs(request: UserRequest) -> HttpResponse:
    """Lists the jobs of the user's teams. The URL's query sets the filter, the order and the page."""
    chosen, choice = JobFilter.read(request.GET), choice_of(request.user, "jobs")
    view = opened(request, "jobs", PARAMETERS, choice)
    if view.redirect:
        return view.redirect
    every = sees_every_tenant(request.user)
    ids = [] if every else ids_with_role(request.user)
    tenants = SimpleLazyObject(
        lambda: list(Tenant.objects.order_by(*by_name("name"))) if every else _tenants(ids)
    )
    columns = chosen.columns or COLUMNS.chosen("", choice.columns)
    several = len(tenants if every else ids) > 1
    if not several and not chosen.columns:
        columns = tuple(key for key in columns if key != "team")
    label_keys = SimpleLazyObject(
        lambda: [key for (key,) in (_every_label_key() if every else _label_keys(ids))]
    )
    groups = page = None
    if chosen.group:
        groups = groups_of(request.user, chosen, request.GET.getlist("open"))
        number = groups.jobs
    else:
        page = page_of(request.user, chosen, request.GET.get("page"))
        number = page.paginator.count
    counted = request.GET.get("facets") == "1" and not wanted_part(request)
    names = [one.name for one in _generations()] if counted else []
    context = {
        "filter": chosen,
        "view": view,
        "facets": facets_of(request.user, chosen, names, number=number) if counted else None,
        "sort": chosen.sort,
        "columns": columns,
        "heads": [(key, COLUMNS.find(key)) for key in columns],
        "page": page,
        "number": number,
        "grouped": groups,
        "groupings": SimpleLazyObject(lambda: groupings(label_keys, with_team=several)),
        "groups": [(key, label) for key, (label, _) in GROUPS.items()],
        "states": Job.State.choices,
        "kinds": Job.Kind.choices,
        "tenants": tenants,
        "several_teams": several,
        "generations": SimpleLazyObject(_generations),
        "label_keys": label_keys,
        "choosable": SimpleLazyObject(
            lambda: choosable(COLUMNS, columns, [f"{LABEL}{key}" for key in label_keys])
        ),
        "topics": topics_of_jobs(request.user),
        "most_compared": MOST_JOBS,
    }
    return render_page(request, "jobs/list.html", context)


_tenants = Prepared(lambda ids: Tenant.objects.filter(pk__in=ids).order_by(*by_name("name")))
_generations = Prepared(lambda: Generation.objects.filter(nodes__isnull=False).distinct())
_every_label_key = Prepared(lambda: LabelKey.objects.values_list("key").distinct()[:200])
_label_keys = Prepared(
    lambda ids: LabelKey.objects.filter(tenant__in=ids).values_list("key").distinct()[:200]
)


@require_safe
def job(request: UserRequest, pk: int) -> HttpResponse:
    """Shows a job's state, speed, cost and leases."""
    return overview(request, pk)


def overview(request: UserRequest, pk: int, *, posted: Form | None = None) -> HttpResponse:
    shown = visible_job(request, pk)
    head = frame(request, shown, "overview", posted=posted)
    if posted is None and wanted_part(request) in INCLUDED:  # the head alone needs none of the data below
        return render_page(request, "jobs/overview.html", head)
    few = detail.few_leases(shown)
    leases = Paginator(detail.leases_of(shown) if few is None else few, LEASES_PER_PAGE)
    context = head | {
        "speeds": detail.speeds_of(shown),
        "cost": detail.cost_of(shown, request.user, few),
        "strip": detail.strip_of(shown, few),
        "page": leases.get_page(request.GET.get("page")),
        "recent": _recent(pk),
        "generation_names": detail.generation_names(shown),
        "labels": _labels(pk) if shown.spec.get("labels") else (),
    }
    return show(request, "jobs/overview.html", context, posted=posted)


_recent = Prepared(lambda job: JobEvent.objects.filter(job=job).order_by("-id")[:6])
_labels = Prepared(lambda job: JobLabel.objects.filter(job=job))


@require_safe
def events(request: UserRequest, pk: int) -> HttpResponse:
    """Shows a job's events, newest first."""
    shown = visible_job(request, pk)
    page = Paginator(shown.events.order_by("-id"), EVENTS_PER_PAGE).get_page(request.GET.get("page"))
    context = frame(request, shown, "events") | {"page": page}
    return render_page(request, "jobs/events.html", context)


@require_safe
def spec(request: UserRequest, pk: int) -> HttpResponse:
    """Shows a job's spec as YAML."""
    shown = visible_job(request, pk)
    context = frame(request, shown, "spec") | {"yaml": detail.yaml_of(shown)}
    return render_page(request, "jobs/spec.html", context)


@require_safe
def compare_with(request: UserRequest, pk: int) -> HttpResponse:
    """Redirects to the comparison of a job with the job whose number the user typed."""
    shown, typed = visible_job(request, pk), request.GET.get("with", "")
    other = job_in_sight(
        request.user, Job.objects.filter(pk=read_key(typed.strip().removeprefix("#"))).first()
    )
    if other is None:
        messages.error(
            request, f"There is no job “{typed[:40]}” that you can see. Enter the number of a job."
        )
        return redirect("job_spec", shown.pk)
    return redirect("job_compare", shown.pk, other.pk)


@require_POST
def cancel(request: UserRequest, pk: int) -> HttpResponse:
    shown = visible_job(request, pk)
    tell(
        request,
        lambda: cancel_job(actor=request.user, job=shown),
        lambda cancelled: f"{shown.name}: {cancelled.get_state_display().lower()}.",
    )
    return redirect("job", pk=pk)


@require_POST
def remedy(request: UserRequest, pk: int) -> HttpResponse:
    """Changes a waiting job as a button beside its explanation says, so that it starts sooner."""
    shown = visible_job(request, pk)
    tell(
        request,
        lambda: apply_remedy(actor=request.user, job=shown, code=request.POST.get("code", "")),
        f"{shown.name} has been changed. The next round takes the change into account.",
        refusals=(NotAllowed, Refused, SpecError),
    )
    return redirect("job", pk=pk)


@require_POST
def sharing(request: UserRequest, pk: int) -> HttpResponse:
    """Makes a job preemptible or not preemptible, as the posted value says, from the next round on."""
    shown, preemptible = visible_job(request, pk), request.POST.get("preemptible") == "true"
    where = "only on GPUs that nobody else wants" if preemptible else "within the fair share"
    tell(
        request,
        lambda: set_preemptible(actor=request.user, job=shown, preemptible=preemptible),
        f"From the next round on, the job {shown.name} runs {where}.",
    )
    return redirect("job", pk=pk)


class SnoozeForm(Form):
    """The form that snoozes the idle rule for a job: the time until which its GPUs may stay idle, and the reason."""

    until = Moment("Until", required=True)
    reason = Text("Why", maxlength=300)

    def clean_until(self) -> datetime:
        until: datetime | None = self.cleaned_data["until"]
        if until is None:
            raise ValidationError("Enter the time at which the snooze ends.")
        return until


@posted_from("job", "pk")
def snooze(request: UserRequest, pk: int) -> HttpResponse:
    """Snoozes the idle rule for a job: the rule's next step is postponed until the time in the form."""
    shown = visible_job(request, pk)
    return perform(
        request,
        SnoozeForm("snooze", request),
        lambda values: snooze_idle(actor=request.user, job=shown, **values),
        done="The rule for idle GPUs has been snoozed for this job until the chosen time.",
        to=("job", pk),
        page=partial(overview, pk=pk),
    )


def visible_job(request: UserRequest, pk: int) -> Job:
    """Returns the job with this key. Raises Http404 if the user may not see the job."""
    found = job_in_sight(request.user, _job.first(pk)) if pk < 2**63 else None
    if found is None:
        raise Http404
    return found


_job = Prepared(
    lambda pk: Job.objects.filter(pk=pk).select_related(
        "tenant",
        "owner",
        "cluster",
        "scheduled_as__schedule",
        "service",
        "sweep",
        "pipeline",
        "step",
        "cloned_from",
        "template_use__version__template",
    )
)


def frame(request: UserRequest, shown: Job, tab: str, *, posted: Form | None = None) -> dict[str, Any]:
    """Returns the template context of the part that all tabs of a job's page share, which is above the selected tab.

    `shown` is the job, and `tab` is the selected tab. `posted` is a refused snooze form, which is shown again with its
    problems; None if no form was refused.
    """
    user = request.user
    may_submit = has_role(user, Membership.Role.MEMBER)
    explainer = Explainer(shown.cluster, user)
    lease, forecast, now = detail.present_lease(shown), detail.forecast_of(shown), timezone.now()
    reached = reached_by(shown) if shown.first_started_at and shown.steps_done is None else None
    may_label = Job.objects.changeable_by(user).filter(pk=shown.pk).exists()
    may_change = may_label and not shown.is_at_end
    return {
        "job": shown,
        "tab": tab,
        "explanation": explainer.explain(shown),
        "reached": reached,
        # Sessions and replicas seldom report steps.
        "counts_steps": shown.kind == Job.Kind.TRAINING or reached or shown.steps_done is not None,
        "place": explainer.place(shown),
        "continuation": continuation_of(shown) if shown.state == Job.State.RUNNING else None,
        "remedies": links_of(shown, user, explainer),
        "repeated": repeated_of(shown, user),
        "forecast": forecast,
        "forecast_is_old": forecast is not None and relative(forecast.at, now) != "now",
        "run_time": run_time_of(shown, lease, forecast=forecast, now=now),
        "stops_at": end_by_limit(shown, user),
        "time_limit": None
        if shown.is_at_end or shown.time_limit_hours is None
        else round(shown.time_limit_hours * 3600),
        "now": now,
        "lease": lease,
        "what_to_do": what_to_do(shown, lease, shown.cluster),
        "drained": nodes_drained_under([lease]),
        "gpu_use": use_of(shown),
        "snooze": SnoozeForm("snooze").or_posted(posted),
        "failure": failure_of(shown),
        "may_cancel": may_change,
        "may_edit": may_label and shown.kind != Job.Kind.REPLICA,
        "may_share": may_change and shown.kind != Job.Kind.REPLICA,
        "may_clone": may_submit,
        "follows": NotificationRule.objects.filter(
            user=user, about=NotificationRule.About.JOB, job_id=shown.pk, way=NotificationRule.Way.BELL
        ).exists(),
        "cloned_from": job_in_sight(user, shown.cloned_from),
        "template_version": version_in_sight(user, shown),
        "may_publish": may_submit and may_somewhere(user, "template.publish"),
    }
