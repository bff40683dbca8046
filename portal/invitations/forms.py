"""The form with which an invited person makes an account."""

from __future__ import annotations

from django.conf import settings
from django.core.exceptions import ValidationError
from django.forms import PasswordInput
from django.http import HttpRequest

from portal.forms.fields import Text
from portal.forms.form import Form


class NewAccount(Form):
    """The form with which an invited person makes an account."""

    username = Text("Username", maxlength=150, autocapitalize="none", autocomplete="username")
    first_name = Text("First name", required=False, autocomplete="given-name")
    last_name = Text("Last name", required=False, autocomplete="family-name")
    password = Text("Password", widget=PasswordInput, strip=False, autocomplete="new-password")
    again = Text("Password again", widget=PasswordInput, strip=False, autocomplete="new-password")

    def __init__(self, request: HttpRequest | None = None) -> None:
        super().__init__("join", request)

    def clean_again(self) -> str:
        again: str = self.cleaned_data["again"]
        if again != self.cleaned_data.get("password"):
            raise ValidationError("The two passwords differ.")
        return again


def accounts_by_invitation() -> bool:
    return bool(settings.FAIRLOT_ACCOUNTS_BY_INVITATION)
