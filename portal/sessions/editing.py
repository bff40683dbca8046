"""The page that starts a session. It has the job form, in which a command that starts a notebook is already filled in,
and fields for the time limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from django.http import HttpResponse, QueryDict
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from accounting.core.errors import NotAllowed, Refused
from accounting.models import User
from portal.jobs.files import Results, results_of
from portal.submit.draft import Choices, Draft
from portal.submit.fields import Fields, read_number
from portal.submit.views import form_context
from portal.unstorable import keeps_form
from portal.user_request import UserRequest
from scheduling.backends.base import FileUnreadable, NoSuchFile
from scheduling.jobs.programs import has_program
from scheduling.models import Cluster, Session
from scheduling.sessions.actions import start_session
from scheduling.sessions.files import FIELD, kept_on, most_copied, source_of, why_no_copy
from scheduling.sessions.programs import PORT, command_for, environments_for
from scheduling.spec.job_spec import SpecError

# Without JupyterLab, the session serves the files of its working directory with Python, which every environment has.
FILES = """mkdir -p ".$FAIRLOT_BASE_URL"
echo "It works. Put files beside this one, and they are served." >".$FAIRLOT_BASE_URL/index.html"
exec python -m http.server "$PORT" --bind 127.0.0.1
"""
NUMBERS = ("idle_minutes", "longest_hours")
FILES_LOOKED_AT, FILES_NAMED = 200, 3


@dataclass(frozen=True)
class Limits:
    """The kind, the idle timeout and the time limit of a session. The texts that the user typed are not validated
    here."""

    kind: str = Session.Kind.NOTEBOOK

    idle_minutes: str = "60"
    longest_hours: str = "12"
    problems: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, session: Session) -> Self:
        texts: dict[str, Any] = {name: str(getattr(session, name)) for name in NUMBERS}
        return cls(kind=session.kind, **texts)

    @classmethod
    def from_post(cls, post: QueryDict) -> Self:
        texts: dict[str, Any] = {name: post.get(name, "") for name in NUMBERS}
        return cls(kind=_kind(post), **texts)

    def read(self) -> dict[str, Any]:
        """Returns the kind, the idle timeout and the time limit as arguments for the action.

        A text that is not a number is returned as a text, and the action then refuses it.
        """
        return {"kind": self.kind, **{name: read_number(getattr(self, name)) for name in NUMBERS}}

    def with_problems(self, error: SpecError) -> Self:
        own = {name: text for name, text in error.problems.items() if name in NUMBERS}
        return replace(self, problems=own)


@dataclass(frozen=True)
class EarlierFiles:
    """The files of the session that is started again, and whether the user wants a copy of them."""

    session: Session
    why_not: str  # why they cannot be copied; "" if they can
    results: Results | None  # the files that the portal can look at; None if it cannot
    is_wanted: bool = True
    problem: str = ""

    @classmethod
    def of(cls, session: Session, user: User) -> Self:
        session = source_of(session)
        why_not = why_no_copy(session)
        results = None
        if not why_not and kept_on(session.job.cluster).work:
            try:
                results = results_of(session.job, user, limit=FILES_LOOKED_AT)
            except (FileUnreadable, NoSuchFile):
                results = None
        return cls(session, why_not, results)

    @property
    def names(self) -> Sequence[str]:
        """Returns the names of the newest files."""
        return [row.name for row in self.results.rows[:FILES_NAMED]] if self.results else []

    @property
    def size(self) -> int | None:
        """Returns how many bytes the files have; None if there are more than were looked at."""
        found = self.results
        if found is None or not found.is_complete or found.count > len(found.rows):
            return None
        return sum(row.size for row in found.rows)

    @property
    def has_home(self) -> bool:
        return kept_on(self.session.job.cluster).work


@keeps_form
@never_cache
@require_http_methods(["GET", "POST"])
def new(request: UserRequest) -> HttpResponse:
    """Shows the form for a new session. A POST starts the session and redirects to its page.

    A POST with `do` starts nothing: `do=form` rewrites the YAML from the form, and `do=yaml` rewrites the form from the
    YAML.
    """
    if request.method == "GET":
        if again := request.GET.get("again"):
            return _as_before(request, again)
        choices, limits = Choices.of(request.user), Limits(kind=_kind(request.GET))
        # The common session needs no change of the form, so the check of it is there at once.
        draft = Draft.new(choices, fields=preset(choices.cluster, limits.kind)).use_form()
        return _page(request, choices, draft.checked_for(request.user), limits)
    choices = Choices.of(request.user, request.POST.get("cluster", ""))
    draft, limits = (
        Draft.from_post(request.POST, choices).with_upload(request),
        Limits.from_post(request.POST),
    )
    files = _earlier_files(request)
    if rewritten := draft.rewritten(request.POST.get("do"), request.user):
        return _page(request, choices, rewritten, limits, files)
    draft = draft.ready_to_send()
    if draft.spec and draft.cluster and draft.tenant:
        try:
            session = start_session(
                actor=request.user,
                tenant=draft.tenant,
                cluster=draft.cluster,
                spec=draft.spec,
                files_from=files.session if files and files.is_wanted else None,
                request_key=draft.request_key,
                even_if_never=draft.even_if_never,
                **limits.read(),
            )
        except SpecError as error:
            limits = limits.with_problems(error)
            rest = {name: text for name, text in error.problems.items() if name not in limits.problems}
            draft = draft.with_problems(SpecError(rest)) if rest else draft
        except (NotAllowed, Refused) as error:
            if files and isinstance(error, Refused) and error.field == FIELD:
                files = replace(files, problem=error.message)
            else:
                draft = draft.refused(error, request.user)
        else:
            return redirect("session", session.pk)
    return _page(request, choices, draft, limits, files, status=422)


def _as_before(request: UserRequest, again: str) -> HttpResponse:
    """Shows the form for a new session, filled with the values of the earlier session whose id is `again`."""
    session = _earlier(request.user, again)
    job = session.job
    choices = Choices.of(request.user, str(job.cluster_id))
    draft = Draft.of_stored(choices, spec=job.spec, tenant=job.tenant, user=request.user)
    return _page(request, choices, draft, Limits.of(session), EarlierFiles.of(session, request.user))


def _earlier(user: User, again: str) -> Session:
    seen = Session.objects.visible_to(user).select_related("job__tenant", "job__cluster")
    return get_object_or_404(seen, pk=int(again) if again.isdecimal() and len(again) < 19 else 0)


def _earlier_files(request: UserRequest) -> EarlierFiles | None:
    """Returns the files of the session that the posted form starts again; None if it starts a new one."""
    if not (again := request.POST.get("again", "")):
        return None
    found = EarlierFiles.of(_earlier(request.user, again), request.user)
    return replace(found, is_wanted=request.POST.get("copy_files") == "on")


def preset(cluster: Cluster | None, kind: str) -> Fields:
    """Returns the initial values of the form. The command starts the kind's program, or a file server if JupyterLab is
    missing."""
    if kind == Session.Kind.NOTEBOOK and lacks_jupyter(cluster):
        return Fields(name="files", command=FILES, port=str(PORT))
    return Fields(name=kind, command=command_for(kind, cluster), port=str(PORT))


def lacks_jupyter(cluster: Cluster | None) -> bool:
    return cluster is not None and not has_program(cluster, "jupyter")


def _kind(asked: QueryDict) -> str:
    kind = asked.get("kind", "")
    return kind if kind in Session.Kind.values else Session.Kind.NOTEBOOK


def _page(
    request: UserRequest,
    choices: Choices,
    draft: Draft,
    limits: Limits,
    files: EarlierFiles | None = None,
    *,
    status: int = 200,
) -> HttpResponse:
    cluster, programs = choices.cluster, dict[str, Sequence[str] | None]()
    if cluster is not None:
        programs = {kind: environments_for(kind, cluster) for kind in Session.Kind.values}
    installed = programs.get(limits.kind)
    environment = draft.fields.environment or next(iter(choices.environments), "")
    context = form_context(draft, choices) | {
        "limits": limits,
        "earlier": files,
        "most_copied": most_copied(),
        "is_session": True,
        "kinds": [(kind, label, programs.get(kind) == []) for kind, label in Session.Kind.choices],
        "is_missing": installed is not None and environment not in installed,
        "installed": installed,
        "lacks_jupyter": lacks_jupyter(cluster),
    }
    return render(request, "sessions/form.html", context, status=status)
