"""Login, and the users' own settings."""

from __future__ import annotations

from typing import Any
from zoneinfo import available_timezones

from django.contrib import messages
from django.contrib.auth.views import LoginView, PasswordChangeView
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe

from accounting.actions import set_preferences
from accounting.core.errors import Refused
from accounting.models import User
from portal.account import lockout
from portal.account.forms import LoginForm, OwnPasswordForm
from portal.models import ApiToken
from portal.user_request import UserRequest
from scheduling.shares.situations import some_cluster_lets_jobs_take_turns


class Login(LoginView):
    """Logs in; answers 429 with registration/locked.html after too many wrong passwords."""

    redirect_authenticated_user = True
    authentication_form = LoginForm

    def form_valid(self, form: LoginForm) -> HttpResponse:
        answer = super().form_valid(form)
        lockout.remember_browser(self.request, answer, form.get_user().get_username())
        return answer

    def form_invalid(self, form: LoginForm) -> HttpResponse:
        if form.minutes is None:
            return super().form_invalid(form)
        answer = render(self.request, "registration/locked.html", {"minutes": form.minutes}, status=429)
        answer["Retry-After"] = str(form.minutes * 60)
        return answer


class PasswordChange(PasswordChangeView):
    """Changes the user's password; wrong old ones count like those of a login."""

    form_class = OwnPasswordForm

    def get_form_kwargs(self) -> dict[str, Any]:
        return super().get_form_kwargs() | {"request": self.request}


@require_safe
def password_changed(request: UserRequest) -> HttpResponse:
    messages.success(request, "Your password is changed.")
    return redirect("preferences")


@never_cache
@require_http_methods(["GET", "POST"])
def preferences(request: UserRequest) -> HttpResponse:
    """Shows and sets theme, time zone, and how the user's jobs share."""
    problems: dict[str, str] = {}
    names = ["theme", "time_zone"]
    if some_cluster_lets_jobs_take_turns():
        names.append("job_order")
    values: dict[str, str | None] = {name: getattr(request.user, name) for name in names}
    if request.method == "POST":
        values = {name: request.POST.get(name) for name in names}
        try:
            set_preferences(actor=request.user, **values)
        except Refused as refused:
            problems[refused.field or ""] = refused.message
        else:
            messages.success(request, "Your preferences are saved.")
            return redirect("preferences")
    context = values | {
        "problems": problems,
        "themes": User.Theme.choices,
        "job_orders": User.JobOrder.choices,
        "time_zones": sorted(available_timezones()),
        "tokens": ApiToken.objects.of(request.user).usable().count(),
    }
    return render(request, "account/preferences.html", context, status=422 if problems else 200)
