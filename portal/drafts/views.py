"""The list of a user's drafts."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.http import require_POST, require_safe

from portal.forms.posting import tell
from portal.fragments import render_page
from portal.submit.keeping import address_of
from portal.user_request import UserRequest
from scheduling.jobs.drafts import MOST, delete_draft
from scheduling.models import Draft


@require_safe
def drafts(request: UserRequest) -> HttpResponse:
    """Lists the user's drafts, the one that was changed last first."""
    found = Draft.objects.visible_to(request.user).defer("content").order_by("-saved_at", "-pk")
    context = {
        "rows": [(draft, address_of(draft)) for draft in found],
        "most": MOST,
        "keep_days": settings.FAIRLOT_KEEP_DRAFTS_DAYS,
    }
    return render_page(request, "drafts/list.html", context)


@require_POST
def delete(request: UserRequest, pk: int) -> HttpResponse:
    draft = get_object_or_404(Draft.objects.visible_to(request.user), pk=pk)
    tell(
        request, lambda: delete_draft(actor=request.user, draft=draft), f"The draft {draft} has been deleted."
    )
    return redirect("drafts")
