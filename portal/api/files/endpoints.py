"""Endpoints for the files that a job writes: list a folder, download a file or a whole folder, see what space the
files of jobs take, and delete them."""

from __future__ import annotations

from typing import Annotated, Any

from django.http.response import HttpResponseBase
from ninja import Query, Router
from ninja.responses import Status

from portal.api.auth import reader_of
from portal.api.document import MAY_CONFLICT
from portal.api.fields import IN_DIGITS, Line
from portal.api.files.schemas import Deletion, FilePage, Results, StoragePage
from portal.api.jobs.endpoints import visible_job
from portal.jobs.downloads import archive_response, file_response, results_response
from portal.jobs.files import AT_ONCE, deleted_at, folder_of, keep_right, results_of
from portal.user_request import ApiRequest
from scheduling.backends.file_names import LONGEST_PATH
from scheduling.models import JobStorage
from scheduling.storage import delete_files

router = Router(tags=["Files"])
Path = Annotated[str, Query(max_length=LONGEST_PATH)]
PageSize = Annotated[int, Query(ge=1, le=AT_ONCE), IN_DIGITS]
PageNumber = Annotated[int, Query(ge=1, le=1_000_000), IN_DIGITS]
FILE = {"schema": {"type": "string", "format": "binary"}}
ONE_FILE: dict[str, Any] = {
    "responses": MAY_CONFLICT["responses"]
    | {
        200: {"description": "The file.", "content": {"application/octet-stream": FILE}},
        206: {"description": "The range of the file.", "content": {"application/octet-stream": FILE}},
        416: {"description": "The range begins after the end of the file."},
    }
}
ARCHIVE: dict[str, Any] = {
    "responses": MAY_CONFLICT["responses"]
    | {200: {"description": "The archive.", "content": {"application/zip": FILE}}}
}


@router.get("/jobs/{int:job_id}/files", response=FilePage, url_name="job_files", openapi_extra=MAY_CONFLICT)
def list_files(
    request: ApiRequest, job_id: int, path: Path = "", after: Path = "", limit: PageSize = 200
) -> dict[str, Any]:
    """Returns one page of a folder of a job, also while the job runs.

    The empty path is the folder of `work`, which has the working folder of each worker, and `checkpoint`.
    """
    shown = folder_of(visible_job(request, job_id), request.auth, path, after=after, limit=limit)
    return {"path": path, "items": shown.rows, "next": shown.after or None, "is_cut": shown.is_cut}


@router.get(
    "/jobs/{int:job_id}/results", response=Results, url_name="job_results", openapi_extra=MAY_CONFLICT
)
def list_results(request: ApiRequest, job_id: int, limit: PageSize = 200) -> dict[str, Any]:
    """Returns the newest files that a job wrote or changed, from all its folders, also while the job runs.

    Left out are uploaded files that are as they were, hidden files, virtual environments and caches.
    """
    found = results_of(visible_job(request, job_id), request.auth, limit=limit)
    return {"items": found.rows, "count": found.count, "is_complete": found.is_complete}


@router.get("/jobs/{int:job_id}/results/archive", url_name="job_results_archive", openapi_extra=ARCHIVE)
def results_archive(request: ApiRequest, job_id: int) -> HttpResponseBase:
    """Streams the files that a job wrote or changed as a zip archive, as far as `results` lists them.

    A file in it, `NOT IN THIS ARCHIVE.txt`, lists what is left out, and why.
    """
    job = visible_job(request, job_id)
    return results_response(job, keep_right(request, request.auth, job, reader_of(request)))


@router.delete("/jobs/{int:job_id}/files", response={202: Deletion}, url_name="job_files")
def delete(request: ApiRequest, job_id: int) -> Any:
    """Has the log and all files of an ended job deleted soon. Calling it again changes nothing.

    For the owner, managers of the team and operators. You cannot undo the deletion.
    """
    wanted = delete_files(actor=request.auth, job=visible_job(request, job_id))
    return Status(202, {"wanted_at": wanted.deletion_wanted_at, "bytes": wanted.size})


@router.get("/storage", response=StoragePage, url_name="storage")
def storage(
    request: ApiRequest, team: Line = "", page: PageNumber = 1, limit: PageSize = 200
) -> dict[str, Any]:
    """Returns which jobs of the caller's teams take how much disk space, biggest first."""
    found = JobStorage.objects.visible_to(request.auth).present().select_related("job__tenant", "job__owner")
    if team:
        found = found.filter(job__tenant__slug=team)
    begin = (page - 1) * limit
    rows = list(found.order_by("-size", "pk")[begin : begin + limit + 1])
    return {"items": [_shown(row) for row in rows[:limit]], "next": page + 1 if len(rows) > limit else None}


def _shown(row: JobStorage) -> dict[str, Any]:
    return {
        "job": row.job_id,
        "name": row.job.name,
        "team": row.job.tenant.slug,
        "owner": row.job.owner.get_username(),
        "state": row.job.state,
        "bytes": row.size,
        "parts": row.parts,
        "files": row.files,
        "is_complete": row.is_complete,
        "measured_at": row.measured_at,
        "deletion_wanted_at": row.deletion_wanted_at,
        "deleted_at": deleted_at(row.job),
    }


@router.get("/jobs/{int:job_id}/files/content", url_name="job_files_content", openapi_extra=ONE_FILE)
def content(request: ApiRequest, job_id: int, path: Path) -> HttpResponseBase:
    """Streams a file of a job, or the range that the header Range asks for.

    Only plain files with one name can be downloaded. A file that the job makes shorter meanwhile ends early.
    """
    job = visible_job(request, job_id)
    return file_response(request, job, path, keep_right(request, request.auth, job, reader_of(request)))


@router.get("/jobs/{int:job_id}/files/archive", url_name="job_files_archive", openapi_extra=ARCHIVE)
def archive(request: ApiRequest, job_id: int, path: Path = "") -> HttpResponseBase:
    """Streams a folder of a job as a zip archive.

    A file in it, `NOT IN THIS ARCHIVE.txt`, lists what is left out, such as links, and why.
    """
    job = visible_job(request, job_id)
    return archive_response(job, path, keep_right(request, request.auth, job, reader_of(request)))
