"""The page where users create and revoke their API tokens."""

from __future__ import annotations

from functools import partial

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from accounting.core.numbers import read_whole
from portal.forms.fields import Choice, Several, Text
from portal.forms.form import Form, Values
from portal.forms.posting import act_on, show, tell
from portal.models import ApiToken, Scope
from portal.sorting import Names, Since, Sorting
from portal.tokens.actions import create_token, revoke_all, revoke_token
from portal.tokens.terminal_logins import decide_login, login_with
from portal.user_request import UserRequest

LIFETIMES = {"7": "7 days", "30": "30 days", "90": "90 days", "365": "1 year", "": "no end"}


SORTING = Sorting(
    {
        "latest": ("pk",), "name": (Names("name"),), "may": ("scopes",), "made": ("created_at",),
        "until": (Since("revoked_at"), "expires_at"), "used": ("last_used_at",),
    },
    usual="-latest",
)  # fmt: skip


class NewToken(Form):
    """The form that creates an API token."""

    name = Text(
        "Name",
        maxlength=80,
        autocomplete="off",
        help_text="What the token is for, such as “nightly training”.",
    )
    days = Choice("Valid for", LIFETIMES.items(), initial="90")
    scopes = Several(
        "Besides reading, the token may",
        Scope.choices,
        help_text="Choose nothing for a token that only reads.",
    )

    def clean_days(self) -> int | None:
        text = self.cleaned_data["days"]
        days = read_whole(text)
        if text and days is None:
            raise ValidationError("Choose a lifetime from the list.")
        return days


@never_cache
@require_http_methods(["GET", "POST"])
def tokens(request: UserRequest) -> HttpResponse:
    """Lists the user's tokens. A POST creates a token and shows its text once."""
    form = NewToken("token", request) if request.method == "POST" else None
    made: list[tuple[ApiToken, str]] = []
    is_made = form and act_on(form, lambda values: made.append(create_token(actor=request.user, **values)))
    context = {
        "made": made[0] if is_made else None,
        "new": NewToken("token").or_posted(None if is_made else form),
        "tokens": SORTING.order(ApiToken.objects.of(request.user), request.GET),
        "sort": SORTING.chosen(request.GET),
    }
    return show(request, "tokens/tokens.html", context, posted=form)


class Allow(Form):
    """The form that gives a token to a program that waits on a terminal."""

    code = Text(
        "Code", maxlength=20, autocomplete="off", help_text="The program shows it, such as BCDF-GHJK."
    )
    days = Choice("Valid for", LIFETIMES.items(), initial="90")
    scopes = Several("Besides reading, the program may", Scope.choices, initial=[Scope.WORK])

    clean_days = NewToken.clean_days


@never_cache
@require_http_methods(["GET", "POST"])
def terminal(request: UserRequest) -> HttpResponse:
    """Shows which program asks for a token, by the code in the query or in the form. A POST allows or denies it."""
    form = Allow("allow", request) if request.method == "POST" else None
    denied = "deny" in request.POST
    if form is not None:
        if denied:
            code = request.POST.get("code", "")
            tell(
                request,
                lambda: decide_login(actor=request.user, user_code=code, allowed=False),
                "The program gets no token.",
            )
            return redirect("tokens")
        if act_on(form, partial(_allow, request)):
            messages.success(request, "The program gets its token within seconds. You may close this page.")
            return redirect("tokens")
    code = request.POST.get("code", request.GET.get("code", ""))
    asked = login_with(code) if code else None
    context = {
        "asked": asked,
        "is_unknown": form is None and code and asked is None,
        "form": Allow("allow", initial={"code": code}).or_posted(form),
    }
    return show(request, "tokens/terminal.html", context, posted=form)


def _allow(request: UserRequest, values: Values) -> None:
    decide_login(
        actor=request.user,
        user_code=values["code"],
        allowed=True,
        scopes=values["scopes"],
        days=values["days"],
    )


@require_POST
def revoke(request: UserRequest, pk: int) -> HttpResponse:
    token = revoke_token(
        actor=request.user, token=get_object_or_404(ApiToken.objects.of(request.user), pk=pk)
    )
    messages.success(request, f"The token {token.name} has been revoked.")
    return redirect("tokens")


@require_POST
def revoke_every(request: UserRequest) -> HttpResponse:
    """Revokes all tokens of the user."""
    revoked = revoke_all(actor=request.user)
    messages.success(request, what_was_revoked(revoked))
    return redirect("preferences")


def what_was_revoked(tokens: int) -> str:
    if not tokens:
        return "You had no token to revoke."
    return "1 API token has been revoked." if tokens == 1 else f"{tokens} API tokens have been revoked."
