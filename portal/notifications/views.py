"""The pages of notifications: the list behind the bell, and the settings that say what users want to know and where."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from accounting.actions.notifications import (
    OF_A_JOB,
    mark_read,
    remove_channel,
    remove_rule,
    save_channel,
    send_test,
    set_rule,
    why_no_mail,
)
from accounting.core.errors import NotAllowed, Refused
from accounting.core.numbers import read_key
from accounting.models import Notification, NotificationChannel, NotificationRule
from accounting.models.notifications import EventKind
from accounting.notifications.wishes import usual_rule
from portal.access import posted_from
from portal.forms.form import Form
from portal.forms.posting import perform, show
from portal.fragments import render_page
from portal.notifications.forms import ChannelForm, RuleForm
from portal.user_request import UserRequest
from scheduling.models import Job

A_PAGE = 50
ICONS: dict[str, str] = {
    EventKind.JOB_FAILED: "alert",
    EventKind.JOB_ENDED: "check-circle",
    EventKind.JOB_WAITING: "clock",
    EventKind.JOB_WARNED: "gpu",
    EventKind.JOB_STARTED: "play",
    EventKind.JOB_SUSPENDED: "pause",
    EventKind.SWEEP_ENDED: "check-circle",
    EventKind.SERVICE_FAILED: "alert",
    EventKind.BUDGET: "usage",
    EventKind.REQUEST_OPEN: "ticket",
    EventKind.REQUEST_ANSWERED: "ticket",
    EventKind.CHANNEL_FAILED: "alert",
    EventKind.TOKEN_REVOKED: "key",
    EventKind.TEAM_MEMBER: "user",
}


@require_safe
def notifications(request: UserRequest) -> HttpResponse:
    """Lists the user's notifications, newest first, or only the unread ones. `?before=` is where the page begins."""
    found = Notification.objects.visible_to(request.user).select_related("event__tenant").order_by("-pk")
    only_unread = request.GET.get("show") == "unread"
    if only_unread:
        found = found.unread()
    if before := read_key(request.GET.get("before", "")):
        found = found.filter(pk__lt=before)
    rows = list(found[: A_PAGE + 1])
    context = {
        "rows": [(row, ICONS.get(row.event.kind, "bell")) for row in rows[:A_PAGE]],
        "only_unread": only_unread,
        "is_first": not before,
        "next": rows[A_PAGE - 1].pk if len(rows) > A_PAGE else None,
    }
    return render_page(request, "notifications/list.html", context)


@require_safe
@never_cache
def bell(request: UserRequest) -> HttpResponse:
    """Renders the bell of the top bar, which refreshes itself when a notification arrives."""
    return render(request, "notifications/bell.html")


@require_POST
def mark(request: UserRequest) -> HttpResponse:
    """Marks notifications as read or unread: those with the posted ids, or all."""
    ids = [key for text in request.POST.getlist("id") if (key := read_key(text))]
    if ids or request.POST.get("all"):
        is_read = request.POST.get("read") != "no"
        mark_read(actor=request.user, ids=None if request.POST.get("all") else ids, read=is_read)
    back = request.POST.get("back", "")
    own = url_has_allowed_host_and_scheme(back, allowed_hosts=None) and back.startswith("/notifications/")
    return redirect(back if own else "notifications")


@require_POST
def open_one(request: UserRequest, pk: int) -> HttpResponse:
    """Marks a notification as read, and opens the page about its event."""
    own = Notification.objects.visible_to(request.user).select_related("event")
    found = get_object_or_404(own, pk=pk)
    mark_read(actor=request.user, ids=[pk])
    return redirect(found.event.path)


@require_http_methods(["GET", "POST"])
def settings(request: UserRequest) -> HttpResponse:
    """Shows the user's rules and channels. A POST sets a rule."""
    if request.method == "GET":
        return _settings(request)
    return perform(
        request,
        RuleForm(request.user, request, rule=_chosen_rule(request)),
        lambda values: set_rule(actor=request.user, **values),
        done="The rule has been saved.",
        to=("notification_settings",),
        page=_settings,
    )


def _chosen_rule(request: UserRequest) -> NotificationRule | None:
    """Returns the rule whose values the form shows; None for a new rule."""
    key = read_key(request.GET.get("rule", "") or request.POST.get("rule", ""))
    changeable = NotificationRule.objects.changeable_by(request.user).select_related("tenant", "channel")
    found = changeable.filter(pk=key).first() if key else None
    way = request.GET.get("usual", "")
    return found or (usual_rule(request.user, way) if way in {"bell", "mail"} else None)


def _settings(request: UserRequest, *, posted: Form | None = None) -> HttpResponse:
    user = request.user
    rules = list(
        NotificationRule.objects.changeable_by(user).select_related("user", "tenant", "channel__tenant")
    )
    own = {(rule.about, rule.way) for rule in rules if rule.user_id == user.pk}
    ways = ["bell", *([] if why_no_mail(user) else ["mail"])]
    usual = [usual_rule(user, way) for way in ways if ("me", way) not in own]
    named = dict(EventKind.choices)
    followed = [rule.job_id for rule in rules if rule.job_id is not None]
    names = dict(Job.objects.visible_to(user).filter(pk__in=followed).values_list("pk", "name"))
    channels = list(NotificationChannel.objects.changeable_by(user).select_related("tenant"))
    key, chosen = read_key(request.GET.get("channel", "")), _chosen_rule(request)
    context = {
        "rules": [
            (rule, [named[kind] for kind in rule.kinds if kind in named], names.get(rule.job_id or 0, ""))
            for rule in [*usual, *rules]
        ],
        "channels": channels,
        "no_mail": why_no_mail(user),
        "rule_form": RuleForm(user, rule=chosen).or_posted(posted),
        "chosen": chosen,
        "channel_form": ChannelForm(
            user, channel=next((one for one in channels if one.pk == key), None)
        ).or_posted(posted),
    }
    return show(request, "notifications/settings.html", context, posted=posted)


@posted_from("notification_settings")
def rule_remove(request: UserRequest, pk: int) -> HttpResponse:
    found = get_object_or_404(NotificationRule.objects.changeable_by(request.user), pk=pk)
    return perform(
        request,
        Form("remove", request),
        lambda _: remove_rule(actor=request.user, rule=found),
        done="The rule has been removed.",
        to=("notification_settings",),
        page=_settings,
    )


@never_cache
@sensitive_post_parameters("url")
@posted_from("notification_settings")
def channel_save(request: UserRequest) -> HttpResponse:
    """Creates a channel, or changes the channel with the posted key."""
    key, channel = request.POST.get("key", ""), None
    if key:
        channel = get_object_or_404(
            NotificationChannel.objects.changeable_by(request.user), pk=read_key(key) or 0
        )
    form = ChannelForm(request.user, request, channel=channel)

    def save(values: dict[str, object]) -> None:
        terms = {"tenant" if name == "team" else name: value for name, value in values.items()}
        save_channel(actor=request.user, channel=channel, **terms)  # type: ignore[arg-type]

    return perform(
        request,
        form,
        save,
        done=lambda values: (
            f"The channel {values['name']} has been saved. Send a test to see whether it works."
        ),
        to=("notification_settings",),
        page=_settings,
    )


@posted_from("notification_settings")
def channel_test(request: UserRequest, pk: int) -> HttpResponse:
    """Posts a test to a channel, and says at once whether the channel took it."""
    found = get_object_or_404(NotificationChannel.objects.changeable_by(request.user), pk=pk)
    try:
        error = send_test(actor=request.user, channel=found)
    except (NotAllowed, Refused) as refused:
        error = str(refused)
    if error:
        messages.error(request, f"The channel {found.name} did not take the test. {error}")
    else:
        messages.success(request, f"The channel {found.name} took the test.")
    return redirect("notification_settings")


@posted_from("notification_settings")
def channel_remove(request: UserRequest, pk: int) -> HttpResponse:
    found = get_object_or_404(NotificationChannel.objects.changeable_by(request.user), pk=pk)
    return perform(
        request,
        Form("remove", request),
        lambda _: remove_channel(actor=request.user, channel=found),
        done=f"The channel {found.name} has been removed.",
        to=("notification_settings",),
        page=_settings,
    )


@require_POST
def follow(request: UserRequest, pk: int) -> HttpResponse:
    """Shows all events of one job behind the user's bell, or no longer does so."""
    job = get_object_or_404(Job.objects.visible_to(request.user), pk=pk)
    held = NotificationRule.objects.filter(user=request.user, about="job", job_id=pk, way="bell").first()
    try:
        if held is None:
            set_rule(actor=request.user, about="job", job_id=job.pk, kinds=OF_A_JOB)
            messages.success(request, f"Your bell now shows the events of {job.name}.")
        else:
            remove_rule(actor=request.user, rule=held)
            messages.success(request, f"Your bell no longer shows the events of {job.name}.")
    except (NotAllowed, Refused) as refused:
        messages.error(request, str(refused))
    return redirect(reverse("job", args=[pk]))
