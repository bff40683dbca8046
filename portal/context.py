"""Template variables about the signed-in user, which are available on every page."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject

from accounting.access.permissions import may_somewhere


def reader(request: HttpRequest) -> dict[str, Any]:
    """Returns the template variable `may_submit`: whether the user may submit jobs for any team.

    The database query runs only when a template uses the variable.
    """
    return {"may_submit": SimpleLazyObject(lambda: may_submit(getattr(request, "user", None)))}


def may_submit(user: Any) -> bool:
    return user is not None and may_somewhere(user, "job.submit")
