"""Serves /.well-known/security.txt (RFC 9116), which lists the contacts for reports of vulnerabilities."""

from __future__ import annotations

from datetime import timedelta

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_safe

IS_VALID_FOR = timedelta(days=90)


@login_not_required
@require_safe
def security_txt(request: HttpRequest) -> HttpResponse:
    """Returns security.txt with the contacts in FAIRLOT_SECURITY_CONTACT. Raises Http404 if the setting is empty."""
    if not settings.FAIRLOT_SECURITY_CONTACT:
        raise Http404
    expires = (timezone.now() + IS_VALID_FOR).replace(hour=0, minute=0, second=0, microsecond=0)
    lines = [
        *(f"Contact: {contact}" for contact in settings.FAIRLOT_SECURITY_CONTACT),
        f"Expires: {expires.isoformat().replace('+00:00', 'Z')}",
        "Preferred-Languages: en",
        f"Canonical: {settings.PUBLIC_URL}{reverse('security_txt')}",
    ]
    return HttpResponse("\n".join(lines) + "\n", content_type="text/plain; charset=utf-8")
