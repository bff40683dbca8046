"""The forms for rules about notifications, and for the channels to which they are posted."""

from __future__ import annotations

from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.http import HttpRequest

from accounting.actions.notifications import why_no_mail
from accounting.core.name_order import by_name
from accounting.core.numbers import read_key
from accounting.models import Membership, NotificationChannel, NotificationRule, Tenant, User
from accounting.models.notifications import USUAL_WAIT, WAITS, EventKind
from portal.forms.fields import NOT_LISTED, Choice, Several, Text
from portal.forms.form import Form
from scheduling.core.event_texts import minutes_or_hours
from scheduling.models import Job

ME, TEAM, JOB = NotificationRule.About.values


class RuleForm(Form):
    """The form that sets what the user wants to know about a subject, and where."""

    about = Choice("About")
    kinds = Several("Events", EventKind.choices)
    place = Choice("Where")
    rhythm = Choice("When", NotificationRule.Rhythm.choices)
    wait_minutes = Choice(
        "A job has waited for long after", [(minutes, minutes_or_hours(minutes * 60)) for minutes in WAITS]
    )

    def __init__(
        self, user: User, request: HttpRequest | None = None, *, rule: NotificationRule | None = None
    ) -> None:
        initial: dict[str, Any] = {"wait_minutes": USUAL_WAIT, "kinds": ["job.failed", "job.ended"]}
        if rule is not None:
            initial = {
                "about": subject_of(rule), "kinds": rule.kinds, "place": place_of(rule),
                "rhythm": rule.rhythm, "wait_minutes": rule.wait_minutes,
            }  # fmt: skip
        super().__init__("rule", request, initial=initial)
        self.user = user
        self.teams = {
            one.slug: one for one in Tenant.objects.visible_to(user).active().order_by(*by_name("name"))
        }
        self.channels = {
            one.pk: one for one in NotificationChannel.objects.changeable_by(user).select_related("tenant")
        }
        jobs = [(subject_of(rule), f"Job #{rule.job_id}")] if rule is not None and rule.job_id else []
        teams = [(f"{TEAM}:{slug}", f"All of team {team.name}") for slug, team in self.teams.items()]
        self.offer("about", [(ME, "What concerns me"), *teams, *jobs])
        mail = [] if why_no_mail(user) else [("mail", f"Mail to {user.email}")]
        self.offer(
            "place", [("bell", "The bell in the top bar"), *mail, *map(_offered, self.channels.values())]
        )

    def clean_wait_minutes(self) -> int:
        return read_key(self.cleaned_data["wait_minutes"]) or 0

    def clean(self) -> dict[str, Any]:
        """Replaces the choices by what `set_rule` takes."""
        values: dict[str, Any] = self.cleaned_data
        about, _, key = values.pop("about", "").partition(":")
        way, _, channel = values.pop("place", "").partition(":")
        values |= {"about": about, "way": way, "tenant": None, "job_id": None, "channel": None}
        if about == TEAM:
            values["tenant"] = self._listed("about", self.teams, key)
        elif about == JOB:
            job = Job.objects.visible_to(self.user).filter(pk=read_key(key) or 0)
            if not job.exists():
                raise ValidationError({"about": NOT_LISTED})
            values["job_id"] = int(key)
        if way == "channel":
            values["channel"] = self._listed("place", self.channels, read_key(channel))
        return values

    def _listed(self, field: str, listed: dict[Any, Any], key: Any) -> Any:
        if key not in listed:
            raise ValidationError({field: NOT_LISTED})
        return listed[key]

    def refuse(self, message: str, field: str | None = None) -> None:
        super().refuse(message, {"way": "place", "channel": "place"}.get(field or "", field))


class ChannelForm(Form):
    """The form that creates a channel, or changes the name and the address of one."""

    kind = Choice("Kind", NotificationChannel.Kind.choices)
    name = Text("Name", maxlength=60)
    url = Text(
        "Address of the incoming webhook",
        widget=forms.PasswordInput,
        required=False,
        is_code=True,
        help_text="Begins with https://. It is stored encrypted and never shown again.",
    )
    team = Choice("Belongs to")

    def __init__(
        self, user: User, request: HttpRequest | None = None, *, channel: NotificationChannel | None = None
    ) -> None:
        super().__init__("channel", request, initial={"name": channel.name} if channel else None)
        self.channel = channel
        managed = Tenant.objects.visible_to(user, role=Membership.Role.MANAGER)
        found = managed.active().order_by(*by_name("name"))
        self.teams = {team.slug: team for team in found}
        self.offer("team", [("", "me"), *((slug, f"team {team.name}") for slug, team in self.teams.items())])
        if channel is not None:
            del self.fields["kind"], self.fields["team"]
            self.fields["url"].help_text = "Leave empty to keep the present address."
        elif not self.teams:
            del self.fields["team"]

    def clean_team(self) -> Tenant | None:
        slug = self.cleaned_data["team"]
        if slug and slug not in self.teams:
            raise ValidationError(NOT_LISTED)
        return self.teams.get(slug)


def subject_of(rule: NotificationRule) -> str:
    """Returns the value of the field `about` for a rule."""
    if rule.tenant is not None:
        return f"{TEAM}:{rule.tenant.slug}"
    return f"{JOB}:{rule.job_id}" if rule.job_id is not None else ME


def place_of(rule: NotificationRule) -> str:
    """Returns the value of the field `place` for a rule."""
    return f"channel:{rule.channel_id}" if rule.channel_id is not None else rule.way


def _offered(channel: NotificationChannel) -> tuple[str, str]:
    of = f", team {channel.tenant.name}" if channel.tenant else ""
    return f"channel:{channel.pk}", f"{channel.get_kind_display()}: {channel.name}{of}"
