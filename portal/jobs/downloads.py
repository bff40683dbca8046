"""Responses that stream a file of a job, or a folder of it as a zip archive. Pages and the API use them.

What a job wrote is never shown as a page of the portal: it is sent as an attachment, and a browser that shows it all
the same gives it no rights (`sandbox`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Generator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from weakref import WeakSet

from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.utils.http import content_disposition_header
from django.utils.text import slugify

from accounting.core.clock import now_from_database
from portal.jobs.archive import MOST_FILES, Archive
from portal.jobs.files import files_of
from portal.live.streams import Rights, while_allowed
from scheduling.backends.base import Backend, BackendError, FileUnreadable
from scheduling.models import Job

logger = logging.getLogger(__name__)

READ = 256 * 1024
MOST_ARCHIVES = 16  # that one process writes at the same time; each may need some megabytes
_archives: WeakSet[Archive] = WeakSet()
SAFELY = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "sandbox; default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)


@dataclass(frozen=True)
class Span:
    """The bytes of a file from `begin` up to `end`, which is not included."""

    begin: int
    end: int


def asked_span(request: HttpRequest, size: int, version: str) -> Span | None:
    """Returns the range that the request asks for; None if it asks for the whole file.

    Several ranges, and a range of another version of the file (If-Range), mean the whole file, as RFC 9110 allows. An
    empty span means that the range lies after the end of the file.
    """
    found = _RANGE.fullmatch(request.headers.get("Range", "").strip())
    if found is None or request.headers.get("If-Range", version) != version:
        return None
    first, last = found.groups()
    if not first and not last:
        return None
    if not first:  # the last bytes
        return Span(max(0, size - int(last)), size)
    begin = int(first)
    if last and int(last) < begin:
        return None
    return Span(begin, min(size, int(last) + 1) if last else size)


def file_response(request: HttpRequest, job: Job, path: str, rights: Rights) -> HttpResponseBase:
    """Streams a file of the job as an attachment, or the range of it that the request asks for.

    Raises NoSuchFile and FileUnreadable.
    """
    backend = files_of(job, rights.user)
    with closing(backend.open_file(job_id=job.pk, path=path)) as opened:
        size, version, identity = opened.size, f'"{opened.version}"', opened.identity
    headers = SAFELY | {
        "Accept-Ranges": "bytes",
        "ETag": version,
        "Content-Disposition": content_disposition_header(True, path.rpartition("/")[2]) or "attachment",
        "Content-Type": "application/octet-stream",
    }
    whole = Span(0, size)
    span = asked_span(request, size, version) or whole
    if span.begin >= span.end and span != whole:
        return HttpResponse(status=416, headers=headers | {"Content-Range": f"bytes */{size}"})
    headers["Content-Length"] = str(span.end - span.begin)
    if span != whole:
        headers["Content-Range"] = f"bytes {span.begin}-{span.end - 1}/{size}"
    status = 200 if span == whole else 206
    if request.method == "HEAD":
        return HttpResponse(status=status, headers=headers)
    content = pulled(_content(backend, job.pk, path, span, identity))
    return StreamingHttpResponse(while_allowed(content, rights), status=status, headers=headers)


def _content(backend: Backend, job_id: int, path: str, span: Span, identity: str) -> Generator[bytes]:
    left = span.end - span.begin
    try:
        with closing(backend.open_file(job_id=job_id, path=path, offset=span.begin)) as opened:
            if (
                opened.identity != identity
            ):  # replaced meanwhile; too short an answer, so that the client notices
                logger.warning("a file of job %s was replaced during its download", job_id)
                return
            while left > 0 and (data := opened.read(min(READ, left))):
                yield data
                left -= len(data)
    except BackendError as error:  # the answer is shorter than its Content-Length, so the client notices
        logger.warning("a file of job %s: %s", job_id, error)


def archive_response(job: Job, path: str, rights: Rights) -> HttpResponseBase:
    """Streams a folder of the job as a zip archive. Raises NoSuchFile and FileUnreadable if it cannot be read."""
    stem = "-".join(filter(None, (slugify(job.name) or "job", str(job.pk), slugify(path.rpartition("/")[2]))))
    return _zip_response(job, path, stem, rights)


def results_response(job: Job, rights: Rights) -> HttpResponseBase:
    """Streams the results of the job as a zip archive. Raises NoSuchFile and FileUnreadable if they cannot be read."""
    return _zip_response(
        job, "", f"{slugify(job.name) or 'job'}-{job.pk}-results", rights, results=MOST_FILES
    )


def _zip_response(
    job: Job, path: str, stem: str, rights: Rights, *, results: int | None = None
) -> HttpResponseBase:
    if len(_archives) >= MOST_ARCHIVES:
        raise FileUnreadable("Too many archives are being written right now. Try again in a moment.")
    archive = Archive(files_of(job, rights.user), job.pk, path, stem, now_from_database(), results)
    archive.first_page()
    _archives.add(archive)  # until its last piece is taken, or its reader has left
    return StreamingHttpResponse(
        while_allowed(pulled(archive.pieces()), rights),
        content_type="application/zip",
        headers=SAFELY | {"Content-Disposition": f'attachment; filename="{stem}.zip"'},
    )


async def pulled(pieces: Generator[bytes]) -> AsyncIterator[bytes]:
    """Yields what a generator yields that reads files. It runs in other threads, one step at a time.

    If the client leaves, nothing closes the generator here, because a thread may be in it. It is closed, with its open
    file, when the last reference to it ends.
    """
    step = sync_to_async(partial(next, pieces, None), thread_sensitive=False)
    del pieces
    while (piece := await step()) is not None:
        if piece:
            yield piece
