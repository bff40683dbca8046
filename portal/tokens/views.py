"""The page where users make and revoke their API tokens."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from accounting.core.errors import Refused
from accounting.core.numbers import read_whole
from portal.models import ApiToken
from portal.sorting import Names, Since, Sorting
from portal.tokens.actions import create_token, revoke_all, revoke_token
from portal.user_request import UserRequest

LIFETIMES = {"7": "7 days", "30": "30 days", "90": "90 days", "365": "1 year", "": "no end"}


SORTING = Sorting(
    {
        "latest": ("pk",), "name": (Names("name"),), "may": ("may_write",), "made": ("created_at",),
        "until": (Since("revoked_at"), "expires_at"), "used": ("last_used_at",),
    },
    usual="-latest",
)  # fmt: skip


@never_cache
@require_http_methods(["GET", "POST"])
def tokens(request: UserRequest) -> HttpResponse:
    """Lists the user's tokens; POST makes one and shows its text this one time."""
    context = {"lifetimes": LIFETIMES.items(), "days": "90", "name": "", "problems": {}}
    status = 200
    if request.method == "POST":
        context |= {
            "name": request.POST.get("name", ""),
            "days": request.POST.get("days", ""),
            "may_write": request.POST.get("may_write") == "on",
        }
        try:
            context["made"], context["text"] = create_token(
                actor=request.user,
                name=context["name"],
                may_write=context["may_write"],
                days=parse_days(context["days"]),
            )
            context["name"] = ""
        except Refused as error:
            context |= (
                {"problems": {error.field: error.message}} if error.field else {"problem": error.message}
            )
            status = 422
    context["tokens"] = SORTING.order(ApiToken.objects.of(request.user), request.GET)
    context["sort"] = SORTING.chosen(request.GET)
    return render(request, "tokens/tokens.html", context, status=status)


def parse_days(text: str) -> int | None:
    days = read_whole(text)
    if text and days is None:
        raise Refused("Choose one of the lifetimes.", field="days")
    return days


@require_POST
def revoke(request: UserRequest, pk: int) -> HttpResponse:
    token = revoke_token(
        actor=request.user, token=get_object_or_404(ApiToken.objects.of(request.user), pk=pk)
    )
    messages.success(request, f"The token {token.name} no longer works.")
    return redirect("tokens")


@require_POST
def revoke_every(request: UserRequest) -> HttpResponse:
    """All of the user's tokens at once."""
    revoked = revoke_all(actor=request.user)
    messages.success(request, f"{how_many(revoked)} revoked." if revoked else "No token was left to revoke.")
    return redirect("preferences")


def how_many(tokens: int) -> str:
    return "1 API token is" if tokens == 1 else f"{tokens} API tokens are"
