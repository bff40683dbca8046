"""The views of a job's files: folders, previews of files, and downloads."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from functools import wraps
from typing import Any, Protocol

from django.conf import settings
from django.http import Http404, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.views.decorators.http import require_safe

from accounting.core.clock import now_from_database
from portal.fragments import render_page, wanted_part
from portal.jobs.downloads import SAFELY, archive_response, file_response, results_response
from portal.jobs.files import are_gone, deleted_at, files_of, folder_of, keep_right, results_of
from portal.jobs.previews import LARGEST_IMAGE, PREVIEW, image_type, preview_of
from portal.jobs.views import frame, visible_job
from portal.user_request import UserRequest
from scheduling.backends.base import RETRY_SECONDS, BackendError, FilesNotReady, NoSuchFile
from scheduling.models import Job

ENTRIES_PER_PAGE = 200
RESULTS, FEW_RESULTS = 100, 5  # most on the Files tab and on the overview


class _View(Protocol):
    def __call__(self, request: UserRequest, pk: int) -> HttpResponseBase: ...


@require_safe
def files(request: UserRequest, pk: int) -> HttpResponse:
    """Shows the job's results, and a page of a folder: `?path=` names it, and `?after=` continues the list.

    The part `job-results` has the results alone. With `?few=1` these are the newest results of a job that has ended.
    """
    job, path, after = visible_job(request, pk), request.GET.get("path", ""), request.GET.get("after", "")
    context = _context(request, job, path) | {
        "after": after,
        "deleted_at": deleted_at(job),
        "are_gone": are_gone(job),
        "may_delete": job.has_ended
        and job.files_removed_at is None
        and job.cluster.backend == "local"
        and Job.objects.changeable_by(request.user).filter(pk=job.pk).exists(),
        "keep_days": settings.FAIRLOT_KEEP_JOB_FILES_DAYS,
    }
    few, part = request.GET.get("few") == "1", wanted_part(request)
    context["few"] = few
    if not context["are_gone"] and not (few and (not job.has_ended or job.cluster.backend != "local")):
        try:
            if not path and not after and part != "job-files":
                limit = FEW_RESULTS if few else RESULTS
                context["results"] = results_of(job, request.user, limit=limit)
            if part != "job-results":
                context["folder"] = folder_of(job, request.user, path, after=after, limit=ENTRIES_PER_PAGE)
        except NoSuchFile:
            raise Http404 from None
        except FilesNotReady as problem:
            context["not_ready"] = problem
        except BackendError as problem:
            context["problem"] = problem
    return render_page(request, "jobs/files.html", context)


@require_safe
def file(request: UserRequest, pk: int) -> HttpResponse:
    """Shows a file of the job, `?path=`, as far as it can be shown. With `?inline=1`, returns the preview alone."""
    job, path = visible_job(request, pk), request.GET.get("path", "")
    context = _context(request, job, path) | {"preview_bytes": PREVIEW}
    try:
        preview = preview_of(files_of(job, request.user), job.pk, path)
    except NoSuchFile:
        raise Http404 from None
    except FilesNotReady as problem:
        context["not_ready"] = problem
    except BackendError as problem:
        context["problem"] = problem
    else:
        changed_at = now_from_database() - timedelta(seconds=preview.age)
        context |= {"preview": preview, "changed_at": changed_at}
        if request.GET.get("inline") == "1":
            return render(request, "jobs/preview.html", context)
    return render_page(request, "jobs/file.html", context)


def _context(request: UserRequest, job: Job, path: str) -> dict[str, Any]:
    names = path.split("/") if path else []
    folders = [("/".join(names[: depth + 1]), name) for depth, name in enumerate(names[:-1])]
    return frame(request, job, "files") | {
        "retry_seconds": RETRY_SECONDS,
        "path": path,
        "name": names[-1] if names else "",
        "folders": folders,
    }


def _or_why_not(view: _View) -> _View:
    """Decorates a view that sends what a job wrote: what is not there is 404, what cannot be read is 409 with the
    reason, or 503 if it can be read soon."""

    @wraps(view)
    def answer(request: UserRequest, pk: int) -> HttpResponseBase:
        try:
            return view(request, pk)
        except NoSuchFile:
            raise Http404 from None
        except BackendError as problem:
            told = HttpResponse(f"{problem}\n", content_type="text/plain; charset=utf-8", status=409)
            if isinstance(problem, FilesNotReady):
                told.status_code = 503
                told["Retry-After"] = str(RETRY_SECONDS)
            return told

    return answer


@require_safe
@_or_why_not
def raw(request: UserRequest, pk: int) -> HttpResponseBase:
    """Sends a file of the job as an attachment, or a range of it."""
    job = visible_job(request, pk)
    return file_response(request, job, request.GET.get("path", ""), keep_right(request, request.user, job))


@require_safe
@_or_why_not
def archive(request: UserRequest, pk: int) -> HttpResponseBase:
    """Sends a folder of the job as a zip archive."""
    job = visible_job(request, pk)
    return archive_response(job, request.GET.get("path", ""), keep_right(request, request.user, job))


@require_safe
@_or_why_not
def results(request: UserRequest, pk: int) -> HttpResponseBase:
    """Sends the results of the job as a zip archive."""
    job = visible_job(request, pk)
    return results_response(job, keep_right(request, request.user, job))


@require_safe
@_or_why_not
def image(request: UserRequest, pk: int) -> HttpResponseBase:
    """Sends a picture of the job for the page that shows it. Anything else, SVG included, is not found here."""
    job, path = visible_job(request, pk), request.GET.get("path", "")
    with closing(files_of(job, request.user).open_file(job_id=job.pk, path=path)) as opened:
        if opened.size > LARGEST_IMAGE:
            raise Http404
        data = b""
        while len(data) < opened.size and (piece := opened.read(opened.size - len(data))):
            data += piece
            if not image_type(data[:16]):
                raise Http404
    if not data:
        raise Http404
    return HttpResponse(data, content_type=image_type(data), headers=SAFELY)
