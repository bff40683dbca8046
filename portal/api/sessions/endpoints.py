"""Endpoints for notebook sessions: list, start, read, extend and stop. Users open a session from its page in the
browser."""

from __future__ import annotations

from typing import Any

from ninja import Query, Router
from ninja.responses import Status

from portal import interruptions
from portal.api.fields import AskedKey, PageSize
from portal.api.jobs.endpoints import place_of, read_spec
from portal.api.pages import ListFilters, page_of
from portal.api.seen import seen_or_404
from portal.api.sessions import schemas
from portal.jobs.failure import failure_of, log_end_of
from portal.jobs.files import are_gone, deleted_at
from portal.sessions.detail import SessionDetail, details_of
from portal.sessions.listing import SESSIONS
from portal.user_request import ApiRequest
from scheduling.advance.ahead import windows_over
from scheduling.core.event_texts import end_text_of
from scheduling.leases.interruptions import back_by, of_session
from scheduling.models import Session
from scheduling.sessions.actions import keep_session, start_session, stop_session
from scheduling.sessions.files import files_sentence, why_no_copy
from scheduling.sessions.programs import completed

router = Router(tags=["Sessions"])
RELATED = ("job__tenant", "job__owner", "job__cluster")


def visible_session(request: ApiRequest, session_id: int) -> Session:
    """Returns the session with this id. Raises NotSeen if there is no such session or the caller may not see the
    session."""
    return seen_or_404(
        Session.objects.visible_to(request.auth).select_related(*RELATED), "session", session_id
    )


@router.get("/sessions", response=schemas.SessionPage, url_name="sessions")
def list_sessions(
    request: ApiRequest,
    filters: Query[ListFilters],
    before: AskedKey | None = None,
    limit: PageSize = 50,
) -> dict[str, Any]:
    """Returns one page of the sessions of the caller's teams, newest first or in the order of `sort`.

    Ended sessions are included.
    """
    found, following = page_of(SESSIONS, request.auth, filters, before, limit)
    return {"items": [show(detail) for detail in details_of(found, request.auth)], "next": following}


@router.post("/sessions", response={201: schemas.SessionInFull}, url_name="sessions")
def begin(request: ApiRequest, new: schemas.NewSession) -> Status[Any]:
    """Starts a session that the caller owns. The job specification must have one worker and a port.

    A specification without a command gets the command of `kind`: JupyterLab or VS Code.
    """
    tenant, cluster = place_of(request.auth, new)
    made = start_session(
        actor=request.auth,
        tenant=tenant,
        cluster=cluster,
        spec=read_spec(new.spec if isinstance(new.spec, str) else completed(new.spec, new.kind, cluster)),
        kind=new.kind,
        idle_minutes=new.idle_timeout_minutes,
        longest_hours=new.time_limit_hours,
        files_from=visible_session(request, new.files_from) if new.files_from is not None else None,
        even_if_never=new.even_if_never,
    )
    return Status(201, _shown(request, made.pk))


@router.get("/sessions/{int:session_id}", response=schemas.SessionInFull, url_name="session")
def get_session(request: ApiRequest, session_id: int) -> dict[str, Any]:
    """Returns a session. The session's log, events and cost are those of the job with the same id."""
    return _shown(request, session_id)


@router.post("/sessions/{int:session_id}/keep", response=schemas.SessionInFull, url_name="session_keep")
def keep(request: ApiRequest, session_id: int) -> dict[str, Any]:
    """Restarts the idle timeout of a session, so that the session is not stopped as idle."""
    keep_session(actor=request.auth, session=visible_session(request, session_id))
    return _shown(request, session_id)


@router.delete("/sessions/{int:session_id}", response={204: None}, url_name="session")
def stop(request: ApiRequest, session_id: int) -> Status[Any]:
    """Stops a session. Its program gets the usual grace period to end. Has no effect on a session that is already
    stopped."""
    stop_session(actor=request.auth, session=visible_session(request, session_id))
    return Status(204, None)


def _shown(request: ApiRequest, session_id: int) -> dict[str, Any]:
    detail = details_of([visible_session(request, session_id)], request.auth)[0]
    failure = log_end_of(detail.job) if detail.is_unready else failure_of(detail.job)
    job = detail.job
    return show(detail) | {
        "files_from": detail.session.files_from_id,
        "files_sentence": why_no_copy(detail.session) if job.has_ended else files_sentence(job),
        "files_kept_until": None if are_gone(job) else deleted_at(job),
        "interruptions": interruptions.as_json(interruptions.shown(of_session(detail.job))),
        "expected_back_at": back_by([detail.job]),
        "reserved_ahead": interruptions.ahead_as_json(
            windows_over([detail.lease], request.auth, ends=detail.ends)
        ),
        "exit_meaning": failure.meaning if failure else "",
        "last_lines": failure.lines if failure else [],
    }


def show(detail: SessionDetail) -> dict[str, Any]:
    job, session = detail.job, detail.session
    return {
        "id": job.pk,
        "name": job.name,
        "kind": session.kind,
        "state": job.state,
        "team": job.tenant.slug,
        "owner": job.owner.get_username(),
        "cluster": job.cluster.name,
        "ready": detail.is_ready,
        "reason": detail.reason,
        "sentence": detail.sentence,
        "warned": detail.is_warned,
        "idle_timeout_minutes": session.idle_minutes,
        "time_limit_hours": session.longest_hours,
        "idle_ends_at": detail.idle_ends,
        "ends_at": detail.ends,
        "claimable_from": detail.claimable_from,
        "created_at": job.created_at,
        "end_message": end_text_of(job),
    }
