"""Features that may be missing: pages show the action's own refusal in place of the form."""

from __future__ import annotations

from django import template
from django.conf import settings

from accounting.notifications import mail
from scheduling.core import encryption

register = template.Library()


@register.simple_tag
def why_nothing_sealed() -> str:
    """Returns why neither secrets nor kubeconfigs can be stored; empty if they can."""
    return encryption.why_none()


@register.simple_tag
def why_no_mail() -> str:
    """Returns why nobody gets mail; empty if a mail server is set."""
    return mail.why_none()


@register.simple_tag
def why_no_hosts() -> str:
    """Returns why nobody can open sessions; empty if they can."""
    if settings.FAIRLOT_SESSIONS_URL:
        return ""
    return "Nobody can open sessions: this portal has no host names for them. An admin sets FAIRLOT_SESSIONS_URL."
