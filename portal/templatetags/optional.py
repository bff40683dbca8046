"""Template tags that say why an optional feature is not available. A page shows the reason in place of the form."""

from __future__ import annotations

from django import template
from django.conf import settings

from accounting.notifications import mail
from scheduling.core import encryption

register = template.Library()


@register.simple_tag
def why_nothing_sealed() -> str:
    """Returns why the portal cannot store secrets and kubeconfigs; empty if it can."""
    return encryption.why_none()


@register.simple_tag
def why_no_mail() -> str:
    """Returns why the portal sends no mail; empty if a mail server is set."""
    return mail.why_none()


@register.simple_tag
def why_no_hosts() -> str:
    """Returns why nobody can open sessions; empty if FAIRLOT_SESSIONS_URL is set."""
    if settings.FAIRLOT_SESSIONS_URL:
        return ""
    return "Nobody can open sessions: this portal has no host names for them. An admin sets FAIRLOT_SESSIONS_URL."
