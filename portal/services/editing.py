"""The pages that create a service and its revisions.

They show the job specification (as form and as YAML), and the fields for replicas and rollouts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from accounting.core.errors import NotAllowed, Refused
from portal.services.rules import Rules
from portal.services.views import visible_service
from portal.submit.draft import Choices, Draft
from portal.submit.fields import Fields
from portal.submit.views import form_context
from portal.unstorable import keeps_form
from portal.user_request import UserRequest
from scheduling.models import Service
from scheduling.services.actions import change_service, create_service
from scheduling.spec.job_spec import SpecError

BEGIN = Fields(port="8000", readiness_path="/")


@keeps_form
@never_cache
@require_http_methods(["GET", "POST"])
def new(request: UserRequest) -> HttpResponse:
    if request.method == "POST":
        return _posted(request, None)
    choices = Choices.of(request.user)
    return _page(request, choices, Draft.new(choices, fields=BEGIN), Rules())


@keeps_form
@never_cache
@require_http_methods(["GET", "POST"])
def update(request: UserRequest, pk: int) -> HttpResponse:
    """Shows the form for a new revision. A POST creates the revision and starts its rollout."""
    service = visible_service(request.user, pk)
    is_changeable = Service.objects.changeable_by(request.user).filter(pk=pk).exists()
    if service.removed_at or service.current is None or not is_changeable:
        raise PermissionDenied
    if request.method == "POST":
        return _posted(request, service)
    choices = _choices(request, service)
    draft = Draft.of_stored(choices, spec=service.current.spec, tenant=service.tenant, user=request.user)
    return _page(request, choices, draft, Rules(), service=service)


def _posted(request: UserRequest, service: Service | None) -> HttpResponse:
    choices = _choices(request, service)
    draft, rules = Draft.from_post(request.POST, choices).with_upload(request), Rules.from_post(request.POST)
    if rewritten := draft.rewritten(request.POST.get("do"), request.user):
        if rewritten.imported and rewritten.imported.options:
            rules = Rules.imported(rewritten.imported.options)
        elif "replicas" not in request.POST:
            rules = Rules()
        return _page(request, choices, rewritten, rules, service=service)
    draft = draft.ready_to_send()
    if draft.spec and draft.cluster and draft.tenant:
        try:
            return redirect("service", _saved(request, draft, rules, service).pk)
        except SpecError as error:
            rules = rules.with_problems(error)
            rest = {name: text for name, text in error.problems.items() if name not in rules.problems}
            draft = draft.with_problems(SpecError(rest)) if rest else draft
        except Refused as error:
            if error.field == "name":
                draft = draft.with_problems(SpecError({"name": str(error)}))
            else:
                draft = draft.refused(error, request.user)
        except NotAllowed as error:
            draft = draft.with_problems(SpecError({"": str(error)}))
    return _page(request, choices, draft, rules, service=service, status=422)


def _saved(request: UserRequest, draft: Draft, rules: Rules, service: Service | None) -> Service:
    given: dict[str, Any] = {"spec": draft.spec, "even_if_never": draft.even_if_never}
    if service:
        return change_service(actor=request.user, service=service, **given)
    where: dict[str, Any] = {"tenant": draft.tenant, "cluster": draft.cluster}
    return create_service(actor=request.user, **where, **given, **rules.read())


def _choices(request: UserRequest, service: Service | None) -> Choices:
    chosen = str(service.cluster_id) if service else request.POST.get("cluster", "")
    choices = Choices.of(request.user, chosen)
    if service is None:
        return choices
    return replace(choices, tenants=[service.tenant], clusters=[service.cluster], cluster=service.cluster)


def _page(
    request: UserRequest,
    choices: Choices,
    draft: Draft,
    rules: Rules,
    *,
    service: Service | None = None,
    status: int = 200,
) -> HttpResponse:
    context = form_context(draft, choices) | {
        "rules": rules,
        "service": service,
        "may_answer_nobody": service is not None and service.wanted and Rules.of(service).may_answer_nobody,
    }
    return render(request, "services/form.html", context, status=status)
