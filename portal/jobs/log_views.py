"""A job's log: the page, the stream that follows it, earlier pieces, search, and the raw file."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from asgiref.sync import sync_to_async
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseBadRequest,
    JsonResponse,
    StreamingHttpResponse,
)
from django.utils.text import slugify
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from accounting.models import User
from portal.fragments import render_page
from portal.jobs.logs import READ, BadPattern, LogEnd, LogFile, log_end, search, split
from portal.jobs.views import HEAD, frame, visible_job
from portal.live.streams import (
    COMMENT,
    HEARTBEAT,
    LONGEST_STREAM,
    Rights,
    event,
    stream,
    while_allowed,
)
from scheduling.backends import backend_for
from scheduling.models import Job

TAIL = 256 * 1024  # bytes shown at first of a long log
PIECE = 128 * 1024  # bytes of "show earlier"
LOOK = 0.4  # seconds between two looks at a log that rests; files tell nobody that they grow
STATE_LOOK = 3.0  # seconds between two looks at the job's state
MOST_FOUND = 1000


@require_safe
def log(request: HttpRequest, pk: int) -> HttpResponse:
    """The viewer, or the head above it when that refreshes."""
    job = visible_job(request, pk)
    ranks = list(backend_for(job.cluster).log_ranks(job_id=pk)) or [0]
    context = frame(request, job, "log") | {"ranks": ranks, "rank": _rank(request)}
    return render_page(request, "jobs/log.html", context, includes=HEAD)


async def log_stream(request: HttpRequest, pk: int) -> HttpResponse:
    """The log as it grows, as server-sent events.

    An event's id is the byte offset after it: a browser that comes back with Last-Event-ID goes on
    there, losing and repeating nothing. Without it the stream begins at `?offset=`, or near the end of
    a long log. Each event's data is {"pieces": [[offset, text], …]}; "start" says where it begins,
    "end" that nothing more will come, "bye" that it is time to ask again (rights may have changed).
    """
    user = await request.auser()
    log_file, offset = await sync_to_async(_prepare_stream)(request, user, pk)
    return stream(_follow(log_file, offset, _rights(request, user, pk)))


def _rights(request: HttpRequest, user: User, pk: int) -> Rights:
    return Rights(request, user, lambda reader: Job.objects.visible_to(reader).filter(pk=pk).exists())


def _prepare_stream(request: HttpRequest, user: User, pk: int) -> tuple[LogFile, int]:
    log_file = _log_file(request, _job_of(user, pk))
    asked = _offset(request.headers.get("Last-Event-ID") or request.GET.get("offset", ""))
    if asked is not None:
        return log_file, asked
    size = log_file.size()
    return log_file, log_file.line_start(size - TAIL) if size > TAIL else 0


async def _follow(log_file: LogFile, offset: int, rights: Rights) -> AsyncIterator[str]:
    read = sync_to_async(log_file.read, thread_sensitive=False)
    read_last = sync_to_async(log_file.last, thread_sensitive=False)
    yield event({"offset": offset}, name="start", event_id=offset)
    end: LogEnd | None = None
    complete, checked, spoke = False, 0.0, time.monotonic()
    seen = 0  # bytes of an unfinished line at the last look
    until = spoke + LONGEST_STREAM
    while time.monotonic() < until and await rights.hold():
        if end:
            data, complete = await read_last(offset, end)
        else:
            data = await read(offset)
        # An unfinished line (a progress bar, a prompt) is shown when it rests for one look.
        pieces, reached = split(data, offset, flush=complete or (0 < len(data) == seen))
        if pieces:
            yield event({"pieces": pieces}, event_id=reached)
            offset, seen, spoke = reached, 0, time.monotonic()
            continue
        seen = len(data)
        if complete:
            if data:  # half a character at the very end
                yield event(
                    {"pieces": [(offset, data.decode("utf-8", "replace"))]}, event_id=offset + len(data)
                )
            yield event({"offset": offset + len(data)}, name="end", event_id=offset + len(data))
            return
        now = time.monotonic()
        if now - checked >= STATE_LOOK:
            # Asked before the last read, so that what was written until the end is never missed.
            was, checked = end, now
            end = await sync_to_async(log_end)(log_file.job_id)
            if end and not was:
                continue
        if now - spoke >= HEARTBEAT:
            yield COMMENT
            spoke = now
        await asyncio.sleep(LOOK)
    yield event("again", name="bye")


@never_cache
@require_safe
def log_piece(request: HttpRequest, pk: int) -> HttpResponse:
    """Other lines than the last: what ends at `?end=`, begins at `?begin=`, or surrounds `?around=`."""
    log_file = _log_file(request, visible_job(request, pk))
    asked = {name: _offset(request.GET.get(name, "")) for name in ("begin", "end", "around")}
    if asked["around"] is not None:
        begin = max(0, asked["around"] - PIECE // 2)
        end = begin + PIECE
    elif asked["begin"] is not None:
        begin, end = asked["begin"], asked["begin"] + PIECE
    elif asked["end"] is not None:
        begin, end = max(0, asked["end"] - PIECE), asked["end"]
    else:
        return HttpResponseBadRequest("begin, end or around must be a whole number")
    size = log_file.size()
    begin = log_file.line_start(min(begin, size))
    pieces = log_file.between(begin, min(end, size))
    return JsonResponse({"begin": begin, "pieces": pieces})


@never_cache
@require_safe
def log_search(request: HttpRequest, pk: int) -> HttpResponse:
    """The offsets of the lines that contain `?q=` (with `regex=1` match it), in the whole log."""
    log_file = _log_file(request, visible_job(request, pk))
    text = request.GET.get("q", "")
    if not text or len(text) > 500:
        return JsonResponse({"problem": "Type up to 500 characters to search for."}, status=422)
    try:
        found = search(log_file, text, regex=request.GET.get("regex") == "1", most=MOST_FOUND)
    except BadPattern as problem:
        return JsonResponse({"problem": f"This is no regular expression: {problem}"}, status=422)
    return JsonResponse({"offsets": found.offsets, "complete": found.complete})


async def log_raw(request: HttpRequest, pk: int) -> HttpResponse:
    """The whole log as it is, byte by byte, for download."""
    user = await request.auser()
    log_file, name, size = await sync_to_async(_prepare_raw)(request, user, pk)
    return StreamingHttpResponse(
        while_allowed(_bytes_of(log_file, size), _rights(request, user, pk)),
        content_type="application/octet-stream",
        headers={
            "Content-Disposition": f'attachment; filename="{name}"',
            "Content-Length": str(size),
            "Cache-Control": "no-store",
        },
    )


def _prepare_raw(request: HttpRequest, user: User, pk: int) -> tuple[LogFile, str, int]:
    job = _job_of(user, pk)
    log_file = _log_file(request, job)
    return log_file, f"{slugify(job.name) or 'job'}-{pk}-rank-{log_file.rank}.log", log_file.size()


async def _bytes_of(log_file: LogFile, size: int) -> AsyncIterator[bytes]:
    read = sync_to_async(log_file.read, thread_sensitive=False)
    offset = 0
    while offset < size and (data := await read(offset, min(4 * READ, size - offset))):
        yield data
        offset += len(data)


def _job_of(user: User, pk: int) -> Job:
    job = Job.objects.visible_to(user).select_related("cluster").filter(pk=pk).first()
    if job is None:
        raise Http404
    return job


def _log_file(request: HttpRequest, job: Job) -> LogFile:
    return LogFile(backend_for(job.cluster), job.pk, _rank(request))


def _offset(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) < 18 else None


def _rank(request: HttpRequest) -> int:
    rank = request.GET.get("rank", "0")
    return int(rank) if rank.isdecimal() and len(rank) < 6 else 0
