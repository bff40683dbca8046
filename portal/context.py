"""Template variables of every page about its reader."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject

from accounting.access.permissions import may_somewhere


def reader(request: HttpRequest) -> dict[str, Any]:
    """Returns `may_submit`: whether the user may submit jobs for any team; looked up when first used."""
    return {"may_submit": SimpleLazyObject(lambda: may_submit(getattr(request, "user", None)))}


def may_submit(user: Any) -> bool:
    return user is not None and may_somewhere(user, "job.submit")
