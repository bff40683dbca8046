"""Endpoints for the open shells of a job: list and end. Terminals are opened by a WebSocket (portal/terminals)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from ninja import Router
from ninja.responses import Status

from portal.api.jobs.endpoints import visible_job
from portal.api.terminals import schemas
from portal.terminals.shells import shells_of
from portal.user_request import ApiRequest
from scheduling.terminals.actions import end_terminal

router = Router(tags=["Jobs"])


@router.get("/jobs/{int:job_id}/terminals", response=schemas.Terminals, url_name="job_terminals")
def list_terminals(request: ApiRequest, job_id: int) -> dict[str, Any]:
    """Returns the open shells of a job. Users who may neither open a terminal in the job nor cancel it see none."""
    shown = shells_of(visible_job(request, job_id), request.auth)
    return {
        "items": [
            {
                "id": one.terminal.pk,
                "worker": one.terminal.worker,
                "user": one.terminal.user.get_username(),
                "own": one.is_own,
                "attached": one.is_attached,
                "opened_from": one.terminal.origin,
                "opened_at": one.terminal.opened_at,
                "may_end": one.may_end,
            }
            for one in shown
        ]
    }


@router.delete(
    "/jobs/{int:job_id}/terminals/{uuid:terminal_id}", response={204: None}, url_name="job_terminal"
)
def end(request: ApiRequest, job_id: int, terminal_id: UUID) -> Status[Any]:
    """Ends a shell and the programs that it runs. Its user may, and users who may cancel the job. Has no effect on a
    shell that has ended."""
    end_terminal(actor=request.auth, job=visible_job(request, job_id), key=terminal_id)
    return Status(204, None)
