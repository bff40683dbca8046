"""Serves the JSON Schema of a job specification, for editors. It is public: an editor does not sign in."""

from __future__ import annotations

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import cache_control
from django.views.decorators.http import require_safe

from scheduling.spec.schema import published


@login_not_required
@require_safe
@cache_control(public=True, max_age=3600)
def job_schema(request: HttpRequest) -> HttpResponse:
    """Returns the schema. Pages of other origins may read it, such as an editor that runs in a browser."""
    answer = HttpResponse(published(), content_type="application/schema+json")
    answer["Access-Control-Allow-Origin"] = "*"
    return answer
