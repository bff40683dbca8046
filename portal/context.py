"""Template variables about the reader, for every page."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject

from accounting.access.permissions import may_somewhere


def reader(request: HttpRequest) -> dict[str, Any]:
    """Returns the variable `may_submit`: whether the user may submit jobs for any team. The query runs on first use."""
    return {"may_submit": SimpleLazyObject(lambda: may_submit(getattr(request, "user", None)))}


def may_submit(user: Any) -> bool:
    return user is not None and may_somewhere(user, "job.submit")
