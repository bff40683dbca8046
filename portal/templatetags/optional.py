"""What a portal may lack: pages say so in place of the form, in the words in which the action refuses."""

from __future__ import annotations

from django import template
from django.conf import settings

from accounting.notifications import mail
from scheduling.core import encryption

register = template.Library()


@register.simple_tag
def why_nothing_sealed() -> str:
    """Why neither secrets nor kubeconfigs can be kept; empty where they can."""
    return encryption.why_none()


@register.simple_tag
def why_no_mail() -> str:
    """Why nobody gets mail; empty where a mail server is set."""
    return mail.why_none()


@register.simple_tag
def why_no_hosts() -> str:
    """Why nobody can open sessions; empty where they can."""
    if settings.FAIRLOT_SESSIONS_URL:
        return ""
    return "Nobody can open sessions: this portal has no host names for them. An admin sets FAIRLOT_SESSIONS_URL."
