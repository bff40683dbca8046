"""Login, changing one's own password, and the preferences page."""

from __future__ import annotations

from typing import Any
from zoneinfo import available_timezones

from django.contrib import messages
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView, LogoutView, PasswordChangeView
from django.forms import RadioSelect
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe

from accounting.actions import set_preferences
from accounting.models import User
from portal.account import lockout
from portal.account.forms import LoginForm, OwnPasswordForm
from portal.account.sign_ins import sign_in, sign_out
from portal.forms.fields import Choice, Text
from portal.forms.form import Form, Values
from portal.forms.posting import act_on, show
from portal.models import ApiToken
from portal.user_request import UserRequest
from scheduling.shares.situations import some_cluster_lets_jobs_take_turns


class Login(LoginView):
    """The login page. After too many wrong passwords it answers 429 with the template registration/locked.html."""

    redirect_authenticated_user = True
    authentication_form = LoginForm

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        user: User = form.get_user()
        sign_in(request=self.request, user=user)
        answer = redirect(self.get_success_url())
        lockout.remember_browser(self.request, answer, user.get_username())
        return answer

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        if not isinstance(form, LoginForm) or form.minutes is None:
            return super().form_invalid(form)
        answer = render(self.request, "registration/locked.html", {"minutes": form.minutes}, status=429)
        answer["Retry-After"] = str(form.minutes * 60)
        return answer


class Logout(LogoutView):
    """Ends the login session."""

    def post(self, request: HttpRequest, *args: Any, **named: Any) -> HttpResponse:
        sign_out(request=request)
        return super().post(request, *args, **named)


class PasswordChange(PasswordChangeView):
    """The page on which users change their own password. Wrong old passwords count against the same limits as at
    login."""

    form_class = OwnPasswordForm

    def get_form_kwargs(self) -> dict[str, Any]:
        return super().get_form_kwargs() | {"request": self.request}


@require_safe
def password_changed(request: UserRequest) -> HttpResponse:
    messages.success(request, "Your password has been changed.")
    return redirect("preferences")


class PreferencesForm(Form):
    """The form for the preferences that users set for themselves."""

    theme = Choice("Look", User.Theme.choices, widget=RadioSelect({"data-theme-choice": ""}))
    time_zone = Text(
        "Time zone",
        list="time-zones",
        autocomplete="off",
        help_text="Pages, reports and report files use this time zone. The API and job exports use UTC.",
    )
    job_order = Choice(
        "Sharing of your GPU time among your jobs",
        User.JobOrder.choices,
        widget=RadioSelect,
        help_text="“In order” runs jobs of higher priority first, then older jobs. “Evenly” divides "
        "your GPU time among jobs of equal priority.",
    )

    def __init__(self, user: User, request: HttpRequest | None = None) -> None:
        initial = {name: getattr(user, name) for name in self.base_fields}
        super().__init__("preferences", request, initial=initial)
        if not some_cluster_lets_jobs_take_turns():
            del self.fields["job_order"]


@never_cache
@require_http_methods(["GET", "POST"])
def preferences(request: UserRequest) -> HttpResponse:
    """Shows and saves the user's preferences: theme, time zone, and how the user's jobs divide the user's GPU time."""
    form = PreferencesForm(request.user, request if request.method == "POST" else None)

    def act(values: Values) -> None:
        given = {name: value for name, value in values.items() if name in form.data}
        set_preferences(actor=request.user, **given)

    if form.is_bound and act_on(form, act):
        messages.success(request, "Your preferences have been saved.")
        return redirect("preferences")
    context = {
        "form": form,
        "time_zones": sorted(available_timezones()),
        "tokens": ApiToken.objects.of(request.user).usable().count(),
    }
    return show(request, "account/preferences.html", context, posted=form)
