"""The pages, pictures and search of the documentation, for all signed-in users."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from portal.docs import library


@require_safe
def page(request: HttpRequest, name: str = library.INDEX) -> HttpResponse:
    """Shows a page of the documentation. With `?q=`, shows the sections that match this search instead.

    Raises Http404 for an unknown page.
    """
    shown = library.pages().get(name)
    if shown is None:
        raise Http404
    query = request.GET.get("q", "").strip()
    context = {
        "page": shown,
        "pages": library.pages().values(),
        "query": query,
        "hits": library.search(query),
    }
    return render(request, "docs/page.html", context)


@require_safe
def picture(_request: HttpRequest, name: str) -> HttpResponse:
    """Sends a picture of docs/. Raises Http404 for any other file."""
    path = library.pictures().get(name)
    if path is None:
        raise Http404
    return HttpResponse(path.read_bytes(), content_type=library.PICTURES[path.suffix])
