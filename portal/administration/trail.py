"""The audit trail: who changed what, with the values before and after."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.paginator import Paginator
from django.db.models import Model, QuerySet, Value
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_safe

from accounting.core.numbers import read_key
from accounting.models import AuditEvent, Price, Quota, Tenant, User
from portal.access import permitted
from portal.administration import verbs
from portal.administration.event_filter import EventFilter
from portal.administration.place import ADMINS, BUDGETS, LIMITS, MANAGERS, MEMBERS
from portal.administration.trail_search import FORMS, seen_of, trail_in_format
from portal.administration.verbs import Kind
from portal.user_request import UserRequest
from scheduling.models import AdvanceReservation, JobTemplate, Pipeline, Schedule, Service, Sweep

EVENTS_PER_PAGE = 50
# How the portal names the classes of the data model, if not by the words of the class's name.
KINDS = {
    "tenant": "team",
    "apitoken": "API token",
    "idlerule": "rule for idle GPUs",
    "jobtemplate": "template",
    "codeupload": "code",
    "generation": "GPU type",
    "ledgertransaction": "booking",
}
# Each class with one page for each object: the URL's name.
PAGES: dict[str, tuple[type[Model], str]] = {
    "service": (Service, "service"),
    "sweep": (Sweep, "sweep"),
    "pipeline": (Pipeline, "pipeline"),
    "schedule": (Schedule, "schedule"),
    "jobtemplate": (JobTemplate, "template"),
    "advancereservation": (AdvanceReservation, "reservation"),
}
# The part of the team's page that shows a change of the team, or of a user in it, by the kind of change.
PARTS = {Kind.LIMITS: LIMITS, Kind.BUDGETS: BUDGETS, Kind.MEMBERS: MEMBERS}
NAMES = {"tenant": "team", "expression": "runs at", "catch_up": "catch up runs of the last"}
# The units of numbers, by the ending of the field's name.
UNITS = {"_seconds": "s", "_minutes": "min", "_hours": "h", "_days": "days", "_percent": "%"}
# Events with these verbs once recorded each field that was sent as `before`, and as `after` only what changed.
BEFORE_OF_ALL = {"service.change"}
# Fields that say which limit or budget was changed; they are shown although they are equal.
WHICH = {"kind", "generation", "user", "per_user", "each_user", "period"}
LONGEST_VALUE = 200  # characters of a value that are shown
# The text for None, by name of the value.
NOTHING = {"generation": "all", "since": "immediately", "parent": "no parent (top level)"}
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d.*(Z|[+-]\d\d:\d\d)", re.ASCII)
NUMBER = re.compile(r"-?\d+(\.\d+)?", re.ASCII)
DIGEST = re.compile(r"[0-9a-f]{40,}", re.ASCII)
DIGEST_SHOWN = 12  # characters of a digest that are shown
DECIMAL = re.compile(r"-?\d+\.\d+", re.ASCII)


@dataclass(frozen=True)
class Change:
    """The value of one field before and after the change that an audit event records."""

    name: str
    before: str  # empty if the event does not record the value
    after: str


@dataclass(frozen=True)
class Entry:
    event: AuditEvent
    words: str  # what was done, such as "Submitted a job"
    target: str  # the name of the changed object
    kind: str  # the kind of the changed object, such as "team"
    href: str  # URL of the changed object's page; empty if the reader may not open the page
    changes: list[Change]


def entries(events: QuerySet[AuditEvent] | list[AuditEvent], reader: User) -> list[Entry]:
    """Returns an entry of the audit trail for each audit event.

    An entry has a link to the changed object if `reader` may open the object's page.
    """
    found = list(events)
    slugs = _slugs(found)
    there = _there(found)
    return [
        Entry(
            event,
            verbs.words_for(event.verb),
            DIGEST.sub(lambda digest: digest[0][:DIGEST_SHOWN], event.target_name),
            _kind(event.target_type),
            _href(event, reader, slugs, there),
            changes_of(event),
        )
        for event in found
    ]


def _slugs(events: list[AuditEvent]) -> dict[int, str]:
    """Returns the slugs of the teams that were changed, and of the teams whose managers may read the events."""
    teams = {int(event.target_id) for event in events if event.target_type == "tenant"}
    teams |= {event.tenant_id for event in events if event.tenant_id}
    return dict(Tenant.objects.filter(pk__in=teams).values_list("pk", "slug"))


def _there(events: list[AuditEvent]) -> set[tuple[str, int]]:
    """Returns (class, key) of each changed object with a page that still exists. Takes one query."""
    found = [
        model._default_manager.filter(pk__in=keys).order_by().values_list(Value(kind), "pk")
        for kind, (model, _) in PAGES.items()
        if (keys := {read_key(event.target_id) for event in events if event.target_type == kind})
    ]
    return set(found[0].union(*found[1:])) if found else set()


def _kind(name: str) -> str:
    """Returns how the portal names a class of the data model: "rule for idle GPUs" for "idlerule"."""
    if name in KINDS:
        return KINDS[name]
    for app in ("accounting", "scheduling", "portal"):
        if name in apps.all_models[app]:
            return str(apps.get_model(app, name)._meta.verbose_name)
    return name


def changes_of(event: AuditEvent) -> list[Change]:
    """Returns the fields that changed, in words and with units, of a new event or of one that was recorded long ago.

    Leaves out fields that are equal before and after unless they say what was changed (WHICH), and fields that have no
    value in a new object. Each value inside a mapping, such as a job's specification, counts as a field.
    """
    before, after = _flat(event.before), _flat(event.after)
    if event.verb in BEFORE_OF_ALL:
        before = {name: value for name, value in before.items() if name in after}
    changes = []
    for name in dict.fromkeys([*before, *after]):
        if name == "currency" and event.verb.startswith("price."):  # each price is shown with its currency
            continue
        if name in before and name in after and before[name] == after[name] and name not in WHICH:
            continue
        if name not in NOTHING and not any(_is_said(values.get(name)) for values in (before, after)):
            continue
        changes.append(Change(_name(name), _told(before, name), _told(after, name)))
    return changes


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    """Returns the values with those inside of mappings beside them: `{"spec": {"code": {"git": "x"}}}` becomes
    `{"code.git": "x"}`, because the name of the specification says nothing."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict) and value:
            inner = _flat(value)
            flat |= inner if name == "spec" else {f"{name}.{key}": one for key, one in inner.items()}
        else:
            flat[name] = value
    return flat


def _is_said(value: Any) -> bool:
    return value not in (None, "", [], {})


def _unit(name: str) -> str:
    return next((unit for ending, unit in UNITS.items() if name.endswith(ending)), "")


def _name(name: str) -> str:
    for ending in UNITS:
        name = name.removesuffix(ending)
    return NAMES.get(name, name.replace("_", " ").replace(".", " · "))


def _href(event: AuditEvent, reader: User, slugs: dict[int, str], there: set[tuple[str, int]]) -> str:
    pk = read_key(event.target_id)
    if pk and (event.target_type, pk) in there:
        return reverse(PAGES[event.target_type][1], args=[pk])
    part = next((one for kind, one in PARTS.items() if event.verb in verbs.WORDS[kind]), None)
    if part is not None and (slug := slugs.get(event.tenant_id or 0)):
        if reader.is_admin and event.target_type == "tenant":
            return reverse(ADMINS.name(part), args=[slug])
        if not reader.is_operator:
            return reverse(MANAGERS.name(part), args=[slug])
    match event.target_type:
        case "job":
            return reverse("job", args=[pk])
        case "tenant" if reader.is_admin and pk in slugs:
            return reverse("admin_tenant", args=[slugs[pk]])
        case "user" if reader.is_admin:
            return reverse("admin_user", args=[pk])
        case "generation" if reader.is_admin:
            return reverse("admin_generations")
        case "request":
            return reverse("request", args=[pk])
        case "cluster" if reader.is_operator:
            return reverse("admin_cluster", args=[pk])
        case "node" if reader.is_operator:
            return f"{reverse('admin_nodes')}#node-{pk}"
    return ""


def _told(values: dict[str, Any], name: str) -> str:
    """Returns the value named `name` from the `values` of an audit event, as text for people; "" if it is missing."""
    if name not in values:
        return ""
    value = values[name]
    if value is None:
        return NOTHING.get(name, "none")
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return _short(", ".join(map(_in_list, value))) or "none"
    if value in ("", {}):
        return "none"
    text = str(value)
    if name == "kind" and text in Quota.Kind.values:
        return str(Quota.Kind(text).label)
    if MOMENT.fullmatch(text):
        return timezone.localtime(datetime.fromisoformat(text)).strftime("%-d %B %Y, %H:%M:%S %Z")
    if name in {"per_gpu_hour", *Price.CLASSES}:
        return _price(Decimal(text), str(values.get("currency", settings.FAIRLOT_CURRENCY)))
    if DIGEST.fullmatch(text):
        return text[:DIGEST_SHOWN]
    if DECIMAL.fullmatch(text):
        text = format(Decimal(text).normalize(), "f")
    unit = _unit(name)
    return f"{text} {unit}" if unit and NUMBER.fullmatch(text) else _short(text)


def _in_list(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key}={one}" for key, one in _flat(value).items() if _is_said(one))
    return str(value)


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


def _price(amount: Decimal, currency: str) -> str:
    """Formats a price as text with its currency. Shows all decimals of the price, and at least two."""
    plain = amount.normalize()
    places = max(2, -int(plain.as_tuple().exponent))
    return f"{plain:.{places}f} {currency}"


@permitted("audit.read")
@require_safe
def audit(request: UserRequest) -> HttpResponse:
    visible = seen_of(request.user)
    wanted = EventFilter.read(request.GET)
    page = Paginator(wanted.narrow(visible), EVENTS_PER_PAGE).get_page(request.GET.get("page"))
    context = {
        "tab": "audit",
        "page": page,
        "entries": entries(list(page.object_list), request.user),
        "filter": wanted,
        "kinds": Kind.choices,
        "verbs": verbs.choices(visible.order_by().values_list("verb", flat=True).distinct()),
        "files": [(form, reverse("admin_audit_file", args=[form])) for form in FORMS],
    }
    return render(request, "administration/audit.html", context)


@permitted("audit.read")
@require_safe
def export(request: UserRequest, form: str) -> HttpResponseBase:
    return trail_in_format(request, request.user, form)
