"""From a posted form to one action: reading plain values, and showing what was refused beside its field."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect
from django.utils import timezone

from accounting import actions
from accounting.core.errors import NotAllowed, Refused
from accounting.core.numbers import read_decimal, read_key, read_whole, why_not_decimal, why_not_whole
from accounting.models import Membership
from portal.fragments import render_page
from portal.inputs import unstorable_of
from scheduling.shares.preview import ShareChange
from scheduling.timetable.local_time import when_shown

MOST_DIGITS = 15  # before and behind the point


@dataclass(frozen=True)
class Refusal:
    """What one form of a page was told; `field` is empty when no field of it is at fault."""

    form: str
    field: str
    message: str
    typed: QueryDict


@dataclass(frozen=True)
class Kept:
    """What one form of a page shows again, though nothing was wrong with it."""

    form: str
    typed: QueryDict


def perform(
    request: HttpRequest,
    form: str,
    act: Callable[[QueryDict], object],
    *,
    done: str,
    to: tuple[Any, ...] | Callable[[], tuple[Any, ...]],
    page: Callable[..., HttpResponse],
) -> HttpResponse:
    """Calls `act` with the posted form; then goes to `to`, or shows `page` again with the refusal.

    `to` is called where the address depends on what `act` changed.
    """
    try:
        check_storable(request)
        act(request.POST)
    except Refused as error:
        return page(request, refusal=refusal(request, form, error.field, error.message))
    except NotAllowed as error:
        return page(request, refusal=refusal(request, form, "", str(error)))
    messages.success(request, done)
    return redirect(*(to() if callable(to) else to))


def check_storable(request: HttpRequest) -> None:
    """Refuses what `InputsMiddleware` found in the form's own fields."""
    for field, why in unstorable_of(request).items():
        raise Refused(f"This {why}.", field)


def refusal(request: HttpRequest, form: str, field: str | None, message: str) -> Refusal:
    return Refusal(form, field if field and field in request.POST else "", message, request.POST)


def show(
    request: HttpRequest,
    template: str,
    context: dict[str, Any],
    *,
    refusal: Refusal | None,
    kept: Kept | None = None,
) -> HttpResponse:
    """A page with forms; 422 where one of them was refused, which is then told beside its field."""
    told = {"refusal": refusal, "kept": kept}
    return render_page(request, template, context | told, status=422 if refusal else 200)


def previewed(request: HttpRequest, rows: Sequence[ShareChange]) -> dict[str, Any]:
    """What administration/preview_answer.html shows: shares before and after, and the fields that are sent again."""
    return {
        "rows": rows,
        "changes": any(row.changes for row in rows),
        "fields": [(name, text) for name, text in request.POST.items() if name != "csrfmiddlewaretoken"],
    }


def change_membership(request: HttpRequest, membership: Membership) -> Callable[[QueryDict], object]:
    """What the form in administration/member.html asks for."""
    return lambda post: actions.change_membership(
        actor=request.user, membership=membership, role=post.get("role", ""), tickets=whole(post, "tickets")
    )


def whole(post: QueryDict, field: str) -> int:
    """A whole number; Refused names the field otherwise."""
    text = post.get(field, "")
    number = read_whole(text)
    if number is None:
        raise Refused(f"This {why_not_whole(text)}.", field)
    if abs(number) >= 2**31:
        raise Refused("This is too large.", field)
    return number


def decimal(post: QueryDict, field: str) -> Decimal:
    """A decimal number with a point."""
    text = post.get(field, "")
    number = read_decimal(text)
    if number is None:
        raise Refused(f"This {why_not_decimal(text)}.", field)
    if number and not -MOST_DIGITS <= number.adjusted() <= MOST_DIGITS:
        raise Refused("This number is too large or too small.", field)
    return number


def part(post: QueryDict, field: str, *, may_be_zero: bool = False) -> Decimal:
    """A part of 1 that is typed as a percentage."""
    percent = decimal(post, field)
    if not 0 <= percent <= 100 or (percent == 0 and not may_be_zero):
        least = "from 0 to" if may_be_zero else "more than 0 and at most"
        raise Refused(f"This must be {least} 100 %.", field)
    return percent / 100


def decimal_or_none(post: QueryDict, field: str) -> Decimal | None:
    """None when left empty."""
    return decimal(post, field) if post.get(field, "").strip() else None


def moment(post: QueryDict, field: str) -> datetime | None:
    """A date and time on the user's clock; None when left empty.

    One that this clock never shows, or twice, as it is put forward or back, is refused: nobody knows which is meant.
    """
    text = post.get(field, "").strip()
    if not text:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise Refused("This must be a date and time, such as 2026-11-21T08:00.", field) from None
    if not 2000 <= at.year <= 2200:
        raise Refused("The year must be from 2000 to 2200.", field)
    if timezone.is_aware(at):
        return at
    shown = when_shown(at, timezone.get_current_timezone())
    if not shown:
        raise Refused("The clocks are put forward over this time; choose one before or after.", field)
    if len(shown) > 1:
        raise Refused("The clocks are put back and show this time twice; choose one before or after.", field)
    return shown[0]


def chosen(post: QueryDict, field: str, among: Any, *, optional: bool = False) -> Any:
    """The row of the QuerySet `among` that was chosen by its key."""
    text = post.get(field, "")
    if optional and not text:
        return None
    row = among.filter(pk=read_key(text)).first()
    if row is None:
        raise Refused("Choose one of the list.", field)
    return row
