"""Template tags that return why an optional feature is not available. Pages show this reason in place of the feature's
form."""

from __future__ import annotations

from django import template
from django.conf import settings

from accounting.core import encryption
from accounting.notifications import mail

register = template.Library()


@register.simple_tag
def why_nothing_sealed() -> str:
    """Returns the reason why the portal cannot store secrets and kubeconfigs, or "" if it can."""
    return encryption.why_sealing_is_off()


@register.simple_tag
def why_no_mail() -> str:
    """Returns the reason why the portal sends no mail, or "" if a mail server is configured."""
    return mail.why_mail_is_off()


@register.simple_tag
def why_no_hosts() -> str:
    """Returns the reason why sessions cannot be opened in a browser, or "" if FAIRLOT_SESSIONS_URL is set."""
    if settings.FAIRLOT_SESSIONS_URL:
        return ""
    return (
        "Nobody can open sessions because this portal has no host names for sessions. An admin "
        "must set FAIRLOT_SESSIONS_URL."
    )
