"""Template tags and filters for icons, chips, times, amounts and bars, so that these look the same on all pages."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from functools import cache, lru_cache
from typing import Any

from django import template
from django.template import RequestContext
from django.template.defaulttags import querystring
from django.template.loader import render_to_string
from django.urls import NoReverseMatch, get_script_prefix, reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import capfirst, get_text_list

from accounting.access import permissions
from accounting.core import wording as amounts
from accounting.core.name_order import by_name
from accounting.limits.quotas import figure
from accounting.models import Tenant, User
from fairshare.model import Reason
from portal import wording
from portal.jobs.detail import places as places_of
from portal.jobs.detail import why_ended
from portal.jobs.filters import ListedJob
from scheduling.backends.local.isolation import Isolation
from scheduling.clusters import isolation
from scheduling.core.event_texts import end_text_of, text_of
from scheduling.core.reason_labels import SHORT
from scheduling.core.run_texts import run_text_of
from scheduling.core.service_texts import service_text_of
from scheduling.jobs.explain import Explanation
from scheduling.models import Cluster, Job, Lease
from scheduling.models.announcements import shown_to

register = template.Library()


@register.simple_tag
@lru_cache(maxsize=512)
def icon(name: str, label: str = "") -> SafeString:
    """Renders an icon from templates/parts/icons.html.

    Screen readers read `label` aloud. Without a label they skip the icon.
    """
    if label:
        return format_html(
            '<svg class="icon" role="img" aria-label="{}"><use href="#i-{}"/></svg>', label, name
        )
    return format_html(
        '<svg class="icon" aria-hidden="true" focusable="false"><use href="#i-{}"/></svg>', name
    )


show_icon = icon  # for functions whose argument `icon` hides this name


@register.filter
def may(user: User, verb: str) -> bool:
    """Returns whether the user's portal role (admin or operator) permits the action `verb`."""
    return permissions.may(user, verb)


@register.inclusion_tag("announcements/shown.html", takes_context=True)
def announcements(context: RequestContext) -> dict[str, object]:
    """Renders the announcements that concern the reader of the page."""
    user = context.get("user")
    shown = shown_to(user) if user is not None and user.is_authenticated else []
    request = context["request"]
    return {"announcements": shown, "csrf_token": context.get("csrf_token"), "back": request.get_full_path()}


@register.simple_tag
def archived_teams(user: User) -> str:
    """Returns a sentence that lists the user's archived teams, or "" if the user has no archived team."""
    archived = Tenant.objects.filter(memberships__user=user, archived_at__isnull=False)
    names = list(archived.order_by(*by_name("name")).values_list("name", flat=True))
    if not names:
        return ""
    if len(names) == 1:
        return f"The team {names[0]} is archived. An admin can restore archived teams."
    return f"The teams {get_text_list(names, 'and')} are archived. An admin can restore archived teams."


@register.simple_tag
def isolation_of(cluster: Cluster) -> Isolation | None:
    """Returns how Fairlot isolates the jobs that a local cluster runs on this machine.

    Returns None for a cluster that is not local, and if the isolation is unknown.
    """
    return isolation.isolation_in(cluster)


@register.simple_tag(takes_context=True)
def why_not_here(context: RequestContext, cluster: Cluster) -> str:
    """Returns the reason why the signed-in user may not submit jobs to the cluster, or "" if the user may."""
    return isolation.why_refused(cluster, context["user"])


@register.simple_tag
def fixed(template: str, *, may_submit: object = False) -> SafeString:
    """Renders a template whose content depends only on `may_submit`: whether the user may submit jobs.

    The result is cached, so the template is rendered only once per process for each value.
    """
    return _fixed(template, bool(may_submit), get_script_prefix())


@cache
def _fixed(template: str, may_submit: bool, prefix: str) -> SafeString:
    # The HTML contains links, which begin with the URL prefix, so `prefix` is a part of the cache key.
    return SafeString(render_to_string(template, {"may_submit": may_submit}).strip())


@register.simple_tag(takes_context=True)
def navigation(context: RequestContext) -> SafeString:
    """Renders the entries of the side bar that the user may open, and highlights the entry of the current page."""
    user = context["user"]
    match = context["request"].resolver_match
    here = wording.section_of(match.url_name if match else "")
    may_submit = bool(context["may_submit"])
    held = frozenset(role for role in wording.ROLES if wording.may_open(user, role, may_submit=may_submit))
    return _navigation(held, here, get_script_prefix())


@lru_cache(maxsize=256)
def _navigation(held: frozenset[str], here: str, prefix: str) -> SafeString:
    """Renders and caches the entries of the side bar for a user with the roles `held`.

    `here` is the entry of the current page. `prefix` is the URL prefix of the links, and so a part of the cache key.
    """
    entries = [
        {"name": name, "href": href, "label": label, "icon": symbol, "current": name == here}
        for name, label, symbol, roles in wording.NAVIGATION
        if roles in held and (href := _href(name))
    ]
    return render_to_string("parts/navigation.html", {"entries": entries})


def _href(name: str) -> str:
    try:
        return reverse(name)
    except NoReverseMatch:
        return ""


@register.simple_tag
def state_chip(job: Job | ListedJob) -> SafeString:
    """Renders a chip (a small label) with the icon, word and colour of a job's state."""
    return _state_chip(job.state)


@cache
def _state_chip(state: str) -> SafeString:
    tone, symbol = wording.STATES[state]
    return chip(Job.State(state).label, tone, symbol)


@register.simple_tag
def reason_chip(job: Job | ListedJob, explanation: Explanation | None = None) -> SafeString:
    """Renders a chip (a small label) with the reason why a job waits; "" if the job does not wait.

    With `explanation`, the chip also names the limit that the job has reached.
    """
    if explanation and job.state in Job.WAITING and not explanation.never:
        return chip(explanation.short, "muted")
    return _reason_chip(job.reason) if job.state in Job.WAITING else SafeString("")


@cache
def _reason_chip(number: int) -> SafeString:
    reason = Reason(number)
    words = f"never: {SHORT[reason]}" if reason.is_never else SHORT[reason]
    return chip(words, "never" if reason.is_never else "muted")


@register.simple_tag
def chip(text: object, tone: str = "neutral", icon: str = "") -> SafeString:
    """Renders a chip, which is a small coloured label; "" if the text is empty.

    `tone` selects the colour: neutral, muted, info, good, warn, bad, never or accent. The HTML is built here and not in
    a template, because a list has hundreds of chips and a template takes several times as long.
    """
    if not text:
        return SafeString("")
    symbol = show_icon(icon) if icon else ""
    return format_html('<span class="chip chip-{}">{}{}</span>', tone, symbol, text)


@register.simple_tag
def ago(moment: datetime | None, empty: str = "–") -> str:
    """Renders a time relative to now, such as "5 min ago", as a `<time>` element. For None, renders the text `empty`.

    The element's title is the exact time in the user's time zone.
    """
    return empty if moment is None else SafeString(ago_at(moment, timezone.now()))


def ago_at(moment: datetime, now: datetime) -> str:
    """Renders a time like `ago`, but relative to `now`."""
    # The values need no escaping: digits, Fairlot's words, and names of days, months and time zones.
    return (
        f'<time datetime="{moment.isoformat(timespec="seconds")}"'
        f' title="{amounts.exact(timezone.localtime(moment))}" data-ago>'
        f"{wording.relative(moment, now)}</time>"
    )


@register.simple_tag
def lasting(since: datetime) -> str:
    """Renders how long ago `since` was, such as "5 min", as a `<time>` element.

    The element's title is the exact time in the user's time zone.
    """
    return format_html(
        '<time datetime="{}" title="since {}" data-lasting>{}</time>',
        since.isoformat(timespec="seconds"),
        amounts.exact(timezone.localtime(since)),
        wording.lasting(since, timezone.now()),
    )


@register.simple_tag
def moment(at: datetime | None, empty: str = "–") -> str:
    """Renders a time, to the second and in the user's time zone, as a `<time>` element. For None, renders the text
    `empty`."""
    if at is None:
        return empty
    local = timezone.localtime(at)
    # The values need no escaping: digits, and names of days, months and time zones.
    return SafeString(
        f'<time datetime="{at.isoformat(timespec="seconds")}" title="{amounts.exact(local)}">'
        f"{amounts.to_the_second(local, timezone.now())}</time>"
    )


@register.simple_tag
def minute(at: datetime) -> SafeString:
    """Renders a time that is a whole minute, such as the begin of a reservation, like `moment` but without seconds."""
    local, now = timezone.localtime(at), timezone.now()
    return SafeString(
        f'<time datetime="{at.isoformat(timespec="seconds")}" title="{amounts.exact(local)}">'
        f"{amounts.to_the_second(local, now)[:-3]}</time>"
    )


@register.simple_tag
def zone() -> str:
    """Returns the name of the current user's time zone. Pages show times, and forms accept times, in this zone."""
    return timezone.get_current_timezone_name()


@register.simple_tag
def wall_of(at: datetime, *, beside: bool = False) -> str:
    """Returns a time as text in the time zone of `at`, and not in the user's time zone.

    With `beside`, the text has only weekday, time of day and zone, because the page shows the date next to it.
    """
    return at.strftime("%a %H:%M %Z" if beside else "%a %-d %b %Y %H:%M %Z")


# The first words of Fairlot's own messages. A text that begins otherwise, for example with a name, stays unchanged.
OPENINGS = re.compile(
    r"(a|add|an|and|are|at|begins|cannot|choose|contains|could|does|each|enough|enter|every|exited|exit|has|have"
    r"|holds|in|is|its?|job|killed|lines?|may|more|must|names?|needs|neither|no|not|nothing|of|one|only|other|out|part"
    r"|paths|put|says|should|somebody|that|the|there|they|this|use|was|with|workers?|write) "
)


register.filter("event_text", text_of)
register.filter("end_text", end_text_of)
register.filter("run_text", run_text_of)
register.filter("service_event_text", service_text_of)


@register.filter
def as_sentence(text: str) -> str:
    """Returns a message with a capital first letter, such as "Must be ..." for "must be ..."."""
    return capfirst(text) if OPENINGS.match(text) else text


@register.filter
def breaks_at_dots(path: str) -> SafeString:
    """Renders the path of a field, such as spec.template.spec, that a narrow column breaks before a dot, bracket or
    slash."""
    return format_html_join(
        SafeString("<wbr>"), "{}", ((part,) for part in re.split(r"(?<=.)(?=[.\[/])", path))
    )


@register.filter
def duration(seconds: float | Decimal | None) -> str:
    """Formats seconds as a duration, such as "1 d 4 h", "2 h 05 min", "3 min 20 s" or "12 s"; "–" for None."""
    return "–" if seconds is None else amounts.duration(float(seconds))


@register.filter
def places(lease: Lease) -> list[tuple[str, str]]:
    """Returns a pair (node name, GPU indexes) for each node of a lease, such as ("k1", "0, 1").

    The lease must have been read together with its GPUs.
    """
    return places_of(lease)


@register.filter
def lease_end(lease: Lease) -> str:
    """Returns a short text that says why a lease ended; "–" while the lease is open.

    `lease` must come from `leases_of` or `few_leases` in portal/jobs/detail.py.
    """
    return why_ended(lease) or "–"


@register.filter
def gpu_time(gpu_seconds: float | Decimal | None) -> str:
    """Formats GPU-seconds as GPU-hours with the unit, rounded to about three digits; "–" for None."""
    return "–" if gpu_seconds is None else f"{amounts.number(float(gpu_seconds) / 3600)} GPU-h"


@register.filter
def policy_name(code: str) -> str:
    """Returns how pages name a policy; the code itself for a policy without a name."""
    return wording.POLICIES.get(code, code)


@register.filter
def gpu_hours(gpu_seconds: float | Decimal | None) -> str:
    """Formats GPU-seconds as GPU-hours without the unit, rounded to about three digits; "–" for None."""
    return "–" if gpu_seconds is None else amounts.number(float(gpu_seconds) / 3600)


@register.filter
def money(amount: Decimal | None, currency: str = "") -> str:
    """Formats an amount of money with its currency; "–" for None.

    The amount has two decimals, or more if it is less than one cent.
    """
    return "–" if amount is None else wording.money(amount, currency)


@register.filter
def money_digits(rows: Iterable[Any]) -> int:
    """Returns how many decimals a column needs in order to show the `cost` of each row.

    Templates pass this number to the tag `money_at`.
    """
    return wording.money_digits(row.cost for row in rows)


@register.simple_tag
def money_at(digits: int, amount: Decimal, currency: str = "") -> str:
    """Formats an amount of money with its currency and `digits` decimals."""
    return wording.money(amount, currency, digits)


@register.filter
def amount(value: float | Decimal | None) -> str:
    """Formats a number with separated thousands, rounded to about three digits; "–" for None."""
    return "–" if value is None else amounts.number(float(value))


@register.filter
def data_size(value: int | None) -> str:
    """Formats a number of bytes; "–" for None."""
    return "–" if value is None else amounts.data_size(value)


@register.filter
def of_a_limit(value: Decimal) -> str:
    """Formats a limit or its usage. Rounds down, so that a usage that is slightly below the limit does not look equal
    to it."""
    return figure(value)


@register.filter
def decimals(value: float | Decimal | None, digits: int) -> str:
    """Formats a number with `digits` decimals, for columns in which numbers are compared; "–" for None."""
    return "–" if value is None else amounts.fixed(value, digits)


@register.simple_tag
def bar(
    value: float, most: float, label: str = "", tone: str = "accent", mark: float | None = None
) -> SafeString:
    """Renders a horizontal bar that is filled to the fraction `value` / `most`.

    `label` is the text for screen readers and the tooltip. `tone` selects the colour. `mark` adds a vertical line at
    this value, for example at the entitlement.
    """

    def percent(part: float) -> str:
        return f"{100 * min(max(part / most, 0), 1) if most else 0:.2f}%"

    label = label or f"{amounts.number(float(value))} of {amounts.number(float(most))}"
    return format_html(
        '<svg class="bar bar-{}" role="img" aria-label="{}" width="100%" height="8"><title>{}</title>'
        '<rect class="bar-track" width="100%" height="8" rx="4"/>'
        '<rect class="bar-fill" width="{}" height="8" rx="4"/>{}</svg>',
        tone,
        label,
        label,
        percent(value),
        ""
        if mark is None
        else format_html(
            '<rect class="bar-mark" x="{}" y="-2" width="2" height="12" transform="translate(-1)"/>',
            percent(mark),
        ),
    )


@register.inclusion_tag("parts/pages.html", takes_context=True)
def page_links(context: RequestContext, page: Any, what: str = "rows") -> dict[str, Any]:
    """Returns the context for the links to the other pages of `page`, a `django.core.paginator.Page`.

    The links keep the other parameters of the URL query. `what` is the plural noun for the listed objects, such as
    "jobs".
    """
    return {
        "request": context["request"],
        "page": page,
        "what": what if page.paginator.count != 1 else what.removesuffix("s"),
        "numbers": page.paginator.get_elided_page_range(page.number, on_each_side=1, on_ends=1),
    }


@register.simple_tag(takes_context=True)
def sort_head(
    context: RequestContext, key: str, text: str, style: str = "", sorts: object = True
) -> SafeString:
    """Renders a column heading with a link that sorts the list by `key`, or without it unless the column `sorts`.

    If the list is already sorted by `key` in ascending order, the link sorts it in descending order. `text` is the
    heading, and `style` is a CSS class.
    """
    if not sorts:
        return format_html(
            '<th scope="col"{}>{}</th>', format_html(' class="{}"', style) if style else "", text
        )
    now: str = context.get("sort") or ""
    address = querystring(context, sort=f"-{key}" if now == key else key, page=None)
    direction = {key: "ascending", f"-{key}": "descending"}.get(now, "")
    return format_html(
        '<th scope="col"{}{}><a class="sort" href="{}"{}>{}{}</a></th>',
        format_html(' class="{}"', style) if style else "",
        format_html(' aria-sort="{}"', direction) if direction else "",
        address,
        format_html(' data-direction="{}"', direction) if direction else "",
        text,
        icon({"ascending": "up", "descending": "down"}[direction]) if direction else "",
    )
