"""Pages of announcements: operators make, change and withdraw them; users dismiss them on every page."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_POST, require_safe

from accounting.core.clock import now_from_database
from accounting.core.errors import Refused
from accounting.core.name_order import by_name
from accounting.core.numbers import read_key
from accounting.models import Tenant
from portal.access import permitted, posted_from
from portal.forms.fields import Choice, Moment, Several, Switch, Text
from portal.forms.form import Form, Values
from portal.forms.posting import perform, show
from portal.user_request import UserRequest
from scheduling.announcements import actions
from scheduling.models import Announcement, Cluster

PER_PAGE = 25


class AnnouncementForm(Form):
    """The form for an announcement: its text, when it is shown, and whom it concerns."""

    text = Text("Text", rows=3, maxlength=500)
    severity = Choice("Severity", Announcement.Severity.choices, initial=Announcement.Severity.INFO)
    begins_at = Moment("Shown from", help_text="Empty: from now on.")
    ends_at = Moment("Shown until", help_text="Empty: until you withdraw it.")
    dismissible = Switch("Users may dismiss it", initial=True)
    roles = Several("Only for", Announcement.Role.choices)
    teams = Several(
        "Only for the teams", help_text="Members of these teams, of teams below them and above them."
    )
    clusters = Several("Only for users of the clusters", help_text="Users with unfinished work there.")

    def __init__(self, request: HttpRequest | None = None, *, of: Announcement | None = None) -> None:
        initial = {}
        if of is not None:
            names = ("text", "severity", "begins_at", "ends_at", "dismissible", "roles")
            initial = {name: getattr(of, name) for name in names}
            initial |= {
                "teams": [str(pk) for pk in of.teams.values_list("pk", flat=True)],
                "clusters": [str(pk) for pk in of.clusters.values_list("pk", flat=True)],
            }
        super().__init__("change" if of else "create", request, initial=initial)
        teams, clusters = Tenant.objects.active(), Cluster.objects.attached()
        self.offer("teams", [(str(one.pk), one.name) for one in teams.order_by(*by_name("name"))])
        self.offer("clusters", [(str(one.pk), one.name) for one in clusters.order_by(*by_name("name"))])

    def clean_teams(self) -> list[Tenant]:
        return list(Tenant.objects.filter(pk__in=_keys(self.cleaned_data["teams"])))

    def clean_clusters(self) -> list[Cluster]:
        return list(Cluster.objects.filter(pk__in=_keys(self.cleaned_data["clusters"])))


def _keys(texts: list[str]) -> list[int]:
    return [key for text in texts if (key := read_key(text))]


def _list(request: UserRequest, *, posted: Form | None = None) -> HttpResponse:
    now = now_from_database()
    found = Announcement.objects.visible_to(request.user).prefetch_related("teams", "clusters")
    page = Paginator(found, PER_PAGE).get_page(request.GET.get("page"))
    context = {
        "tab": "announcements",
        "page": page,
        "announcements_listed": [(one, one.state_at(now), _whom(one)) for one in page],
        "create": AnnouncementForm().or_posted(posted),
    }
    return show(request, "announcements/list.html", context, posted=posted)


def _whom(one: Announcement) -> str:
    """Returns whom an announcement concerns, in words."""
    roles = [str(Announcement.Role(role).label) for role in one.roles]
    told = [
        ", ".join(roles),
        ", ".join(team.name for team in one.teams.all()),
        ", ".join(f"users of {cluster.name}" for cluster in one.clusters.all()),
    ]
    return "; ".join(part for part in told if part) or "everybody"


@permitted("announcement.change")
@require_safe
def announcements(request: UserRequest) -> HttpResponse:
    return _list(request)


@permitted("announcement.change")
@posted_from("admin_announcements")
def create(request: UserRequest) -> HttpResponse:
    return perform(
        request,
        AnnouncementForm(request),
        lambda values: actions.announce(actor=request.user, **values),
        done="The announcement has been saved.",
        to=("admin_announcements",),
        page=_list,
    )


def _page(request: UserRequest, *, pk: int, posted: Form | None = None) -> HttpResponse:
    found = get_object_or_404(Announcement.objects.visible_to(request.user), pk=pk)
    context = {
        "tab": "announcements",
        "announcement": found,
        "state": found.state_at(now_from_database()),
        "dismissed": found.dismissals.count(),
        "change": AnnouncementForm(of=found).or_posted(posted),
        "withdraw": Form("withdraw").or_posted(posted),
    }
    return show(request, "announcements/announcement.html", context, posted=posted)


@permitted("announcement.change")
@require_safe
def announcement(request: UserRequest, pk: int) -> HttpResponse:
    return _page(request, pk=pk)


@permitted("announcement.change")
@posted_from("admin_announcement", "pk")
def change(request: UserRequest, pk: str, verb: str) -> HttpResponse:
    """Changes or withdraws an announcement, as `verb` says."""
    found = get_object_or_404(Announcement.objects.visible_to(request.user), pk=pk)
    acts: dict[str, tuple[Form, Callable[[Values], object], str]] = {
        "change": (
            AnnouncementForm(request, of=found),
            lambda values: actions.change_announcement(actor=request.user, announcement=found, **values),
            "The announcement has been changed.",
        ),
        "withdraw": (
            Form("withdraw", request),
            lambda _: actions.withdraw_announcement(actor=request.user, announcement=found),
            "The announcement has been withdrawn. No page shows it any more.",
        ),
    }
    form, act, done = acts[verb]
    return perform(
        request, form, act, done=done, to=("admin_announcements",), page=partial(_page, pk=found.pk)
    )


@require_POST
def dismiss(request: UserRequest, pk: int) -> HttpResponse:
    """Removes an announcement from the user's pages, and leads back to the page where the user pressed the button."""
    if not actions.is_shown(request.user, pk):
        raise Http404
    try:
        actions.dismiss_announcement(actor=request.user, announcement=Announcement.objects.get(pk=pk))
    except Refused:
        raise Http404 from None  # pages show no button for it
    if request.headers.get("HX-Request"):
        return HttpResponse()
    back = request.POST.get("back", "")
    allowed = url_has_allowed_host_and_scheme(back, {request.get_host()}, request.is_secure())
    return redirect(back if allowed else "home")
