"""Forms for secrets. After a form is sent, no page shows the typed value again."""

from __future__ import annotations

from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.utils.safestring import mark_safe

from accounting.core.errors import Refused
from accounting.core.name_order import by_name
from accounting.models import Membership, Tenant, User
from portal.forms.fields import NOT_LISTED, Choice, SecretInput, Text
from portal.forms.form import Form
from portal.submit.lines import read_variables
from scheduling.models.secrets import ONLY_KEY
from scheduling.spec.job_spec import SpecError

HIDDEN = ("value", "lines")


class SecretForm(Form):
    """The form for the content of a secret: a single value, or several values with keys."""

    value = Text(
        "Value",
        rows=4,
        required=False,
        strip=False,
        widget=SecretInput,
        help_text="The secret value, such as a token. It is encrypted and never shown again.",
        is_code=True,
        css="code",
    )
    lines = Text(
        "Several values with keys",
        rows=4,
        required=False,
        strip=False,
        widget=SecretInput,
        placeholder="api-key=…",
        help_text=mark_safe(
            "To store several values in one secret, write one <code>KEY=VALUE</code> per line. The "
            "specification of a job names a value as <code>secret/key</code>. If a job mounts the "
            "secret, each key becomes a file."
        ),
        is_code=True,
        css="code",
    )

    def texts(self) -> dict[str, str]:
        r"""Returns the values of the secret by key, with "\n" as line ends.

        Raises Refused if a line is invalid, or if the fields for one value and for several values are both filled.
        """
        text, lines = (self.cleaned_data[name].replace("\r\n", "\n") for name in HIDDEN)
        if text and lines.strip():
            raise Refused(
                "Fill in either one value or several values with keys. Leave the other field empty.", "value"
            )
        if not lines.strip():
            return {ONLY_KEY: text}
        try:
            return read_variables(lines, "lines", hidden=True)
        except SpecError as error:
            raise Refused(error.problems["lines"], "lines") from None


class NewSecret(SecretForm):
    """The form that stores a secret, either for the user's own jobs or for the jobs of a team that the user manages."""

    name = Text(
        "Name",
        maxlength=63,
        help_text=mark_safe(
            "Name of the secret: lowercase letters, digits and hyphens, such as <code>hf-token</code>."
        ),
        is_code=True,
    )
    team = Choice("May be used by")

    def __init__(self, user: User, request: HttpRequest | None = None) -> None:
        super().__init__("create", request)
        managed = Tenant.objects.visible_to(user, role=Membership.Role.MANAGER).active()
        self.teams = {team.slug: team for team in managed.order_by(*by_name("name"))}
        named = [(slug, f"the jobs of all members of {team.name}") for slug, team in self.teams.items()]
        self.offer("team", [("", "only my jobs"), *named])

    def clean_team(self) -> Tenant | None:
        slug = self.cleaned_data["team"]
        if slug and slug not in self.teams:
            raise ValidationError(NOT_LISTED)
        return self.teams.get(slug)
