"""The views of a job's log: the page, the stream of new lines, parts of the log on request, the search, and the raw
file."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing

from asgiref.sync import sync_to_async
from django.db import Error
from django.http import (
    Http404,
    HttpResponse,
    HttpResponseBadRequest,
    JsonResponse,
    StreamingHttpResponse,
)
from django.http.response import HttpResponseBase
from django.utils.text import slugify
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from accounting.models import User
from portal.edge.turns import Full
from portal.fragments import render_page
from portal.jobs.logs import READ, BadPattern, LogEnd, LogFile, Search, log_end, split
from portal.jobs.views import frame, visible_job
from portal.live.streams import (
    COMMENT,
    HEARTBEAT,
    LONGEST_STREAM,
    Rights,
    event,
    stream,
    while_allowed,
)
from portal.user_request import UserRequest
from scheduling.backends.base import LogUnreadable
from scheduling.clusters.backend_factory import backend_for
from scheduling.models import Job

logger = logging.getLogger(__name__)

TAIL = 256 * 1024  # bytes at the end of a long log that are shown first
PIECE = 128 * 1024  # bytes that “show earlier” adds
LOOK = 0.4  # seconds between two reads of a log that does not grow; files send no notification of growth
STATE_LOOK = 3.0  # seconds between two reads of the job's state
MOST_FOUND = 1000


@require_safe
def log(request: UserRequest, pk: int) -> HttpResponse:
    """Shows the log page. When htmx refreshes the page, returns only the job's status above the log, not the log."""
    job = visible_job(request, pk)
    names = job.worker_names
    try:
        ranks = [rank for rank in backend_for(job.cluster).log_ranks(job_id=pk) if rank < len(names)]
    except LogUnreadable:  # the stream reports the reason
        ranks = []
    rank = _rank(request, job)
    workers = [(each, _worker_in_words(names, each)) for each in ranks or [rank]]
    context = frame(request, job, "log") | {"workers": workers, "rank": rank}
    context["worker"] = _worker_in_words(names, rank)
    return render_page(request, "jobs/log.html", context)


async def log_stream(request: UserRequest, pk: int) -> StreamingHttpResponse:
    """Streams the log as server-sent events while it grows.

    The stream begins at the first of these byte offsets that is known:

    - the header Last-Event-ID, which a browser sends when it reconnects;
    - the query parameter `offset`;
    - the start of a short log, or a line near the end of a long one.

    The id of an event is the byte offset after the event's text. The data of an event
    without a name is {"pieces": [[offset, text], …]}. The named events are:

    - "start", with the first offset;
    - "end", when the log is complete;
    - "bye", when the browser should reconnect, because the user's rights may have changed;
    - "problem", with the reason why the log cannot be read.
    """
    user = request.user
    log_file, offset = await sync_to_async(_prepare_stream)(request, user, pk)
    return stream(_follow_or_say_why_not(log_file, offset, _rights(request, user, pk)))


def _rights(request: UserRequest, user: User, pk: int) -> Rights:
    return Rights(request, user, lambda reader: Job.objects.visible_to(reader).filter(pk=pk).exists())


def _prepare_stream(request: UserRequest, user: User, pk: int) -> tuple[LogFile, int | None]:
    log_file = _log_file(request, _job_of(user, pk))
    return log_file, _offset(request.headers.get("Last-Event-ID") or request.GET.get("offset", ""))


async def _follow_or_say_why_not(log_file: LogFile, asked: int | None, rights: Rights) -> AsyncIterator[str]:
    try:
        offset = asked
        if offset is None:
            offset = await sync_to_async(_tail, thread_sensitive=False)(log_file)
        async with aclosing(_follow(log_file, offset, rights)) as events:
            async for each in events:
                yield each
    except LogUnreadable as error:
        yield event(_unreadable(error), name="problem")


def _tail(log_file: LogFile) -> int:
    """Returns the offset at which the stream begins by default: 0 for a short log, or the start of a line near the end
    of a long log."""
    size = log_file.size()
    return log_file.line_start(size - TAIL) if size > TAIL else 0


def _unreadable(error: LogUnreadable) -> dict[str, str]:
    return {"problem": str(error), "code": "log_unreadable"}


async def _follow(log_file: LogFile, offset: int, rights: Rights) -> AsyncGenerator[str]:
    read = sync_to_async(log_file.read, thread_sensitive=False)
    read_last = sync_to_async(log_file.last, thread_sensitive=False)
    yield event({"offset": offset}, name="start", event_id=offset)
    end: LogEnd | None = None
    complete, checked, spoke = False, 0.0, time.monotonic()
    seen = 0  # length of the unfinished line at the last read, in bytes
    until = spoke + LONGEST_STREAM
    while time.monotonic() < until and await rights.hold():
        if end:
            data, complete = await read_last(offset, end)
        else:
            data = await read(offset)
        # An unfinished line (a progress bar, a prompt) is sent once two reads have found it unchanged.
        pieces, reached = split(data, offset, flush=complete or (0 < len(data) == seen))
        if pieces:
            yield event({"pieces": pieces}, event_id=reached)
            offset, seen, spoke = reached, 0, time.monotonic()
            continue
        seen = len(data)
        if complete:
            if data:  # the log ends with an incomplete UTF-8 character
                yield event(
                    {"pieces": [(offset, data.decode("utf-8", "replace"))]}, event_id=offset + len(data)
                )
            yield event({"offset": offset + len(data)}, name="end", event_id=offset + len(data))
            return
        now = time.monotonic()
        if now - checked >= STATE_LOOK:
            # The state is read before the last bytes of the log, so that nothing written before the job's end is
            # missed.
            was, checked = end, now
            try:
                end = await sync_to_async(log_end)(log_file.job_id)
            except (Error, Full) as error:  # the state is read again after STATE_LOOK seconds
                logger.warning("whether the log of job %s has ended is not known: %s", log_file.job_id, error)
            if end and not was:
                continue
        if now - spoke >= HEARTBEAT:
            yield COMMENT
            spoke = now
        await asyncio.sleep(LOOK)
    yield event("again", name="bye")


@never_cache
@require_safe
def log_piece(request: UserRequest, pk: int) -> HttpResponse:
    """Returns a part of the log as JSON: whole lines of about PIECE bytes together.

    One of three query parameters gives a byte offset: `?begin=` for the lines from this offset on, `?end=` for the
    lines before it, or `?around=` for the lines around it. Answers 400 if none of them is a valid offset.
    """
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
        return HttpResponseBadRequest(
            "Send one of the parameters “begin”, “end” and “around”. Its value must be a byte offset: a whole "
            "number, 0 or more."
        )
    try:
        size = log_file.size()
        begin = log_file.line_start(min(begin, size))
        pieces = log_file.between(begin, min(end, size))
    except LogUnreadable as error:
        return JsonResponse(_unreadable(error), status=409)
    return JsonResponse({"begin": begin, "pieces": pieces})


@never_cache
@require_safe
async def log_search(request: UserRequest, pk: int) -> HttpResponse:
    """Searches the log and returns the byte offsets of matching lines as JSON.

    A line matches if it contains the text `?q=` or, with `regex=1`, matches `?q=` as a regular expression. The search
    begins at the byte offset `?from=`, and has limits on bytes, time and matches. `next` in the response is the offset
    at which another search can continue, or null at the end of the log. The search stops if the client disconnects.
    """
    log_file = await sync_to_async(_prepare_search)(request.user, request, pk)
    text, begin = request.GET.get("q", ""), _offset(request.GET.get("from", "0"))
    if not text or len(text) > 500:
        return JsonResponse({"problem": "Enter 1 to 500 characters to search for."}, status=422)
    if begin is None:
        return JsonResponse(
            {"problem": "The parameter “from” must be a byte offset: a whole number, 0 or more."}, status=422
        )
    try:
        search = Search(log_file, text, regex=request.GET.get("regex") == "1", most=MOST_FOUND, begin=begin)
        while await sync_to_async(search.look, thread_sensitive=False)():
            continue
    except BadPattern as problem:
        return JsonResponse({"problem": f"This is not a valid regular expression: {problem}"}, status=422)
    except LogUnreadable as error:
        return JsonResponse(_unreadable(error), status=409)
    found = search.found
    return JsonResponse({"offsets": found.offsets, "complete": found.complete, "next": found.next})


def _prepare_search(user: User, request: UserRequest, pk: int) -> LogFile:
    return _log_file(request, _job_of(user, pk))


async def log_raw(request: UserRequest, pk: int) -> HttpResponseBase:
    """Returns the whole log as a download, with exactly the bytes that the program wrote."""
    user = request.user
    try:
        log_file, name, size = await sync_to_async(_prepare_raw)(request, user, pk)
    except LogUnreadable as error:
        return HttpResponse(str(error), content_type="text/plain; charset=utf-8", status=409)
    return StreamingHttpResponse(
        while_allowed(_bytes_of(log_file, size), _rights(request, user, pk)),
        content_type="application/octet-stream",
        headers={
            "Content-Disposition": f'attachment; filename="{name}"',
            "Content-Length": str(size),
            "Cache-Control": "no-store",
        },
    )


def _prepare_raw(request: UserRequest, user: User, pk: int) -> tuple[LogFile, str, int]:
    job = _job_of(user, pk)
    log_file = _log_file(request, job)
    return log_file, f"{slugify(job.name) or 'job'}-{pk}-rank-{log_file.rank}.log", log_file.size()


async def _bytes_of(log_file: LogFile, size: int) -> AsyncIterator[bytes]:
    read = sync_to_async(log_file.read, thread_sensitive=False)
    offset = 0
    try:
        while offset < size and (data := await read(offset, min(4 * READ, size - offset))):
            yield data
            offset += len(data)
    except LogUnreadable as error:  # the answer is shorter than its Content-Length, so the client notices
        logger.warning("job %s, worker %s: %s", log_file.job_id, log_file.rank, error)


def _job_of(user: User, pk: int) -> Job:
    job = Job.objects.visible_to(user).select_related("cluster").filter(pk=pk).first()
    if job is None:
        raise Http404
    return job


def _log_file(request: UserRequest, job: Job) -> LogFile:
    rank = _rank(request, job)
    if rank >= len(job.worker_names):
        raise Http404
    return LogFile(backend_for(job.cluster), job.pk, rank)


def _offset(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 18 else None


def _rank(request: UserRequest, job: Job) -> int:
    """Returns the rank that the URL names, or else that of the worker that stands for the job."""
    rank = request.GET.get("rank", "")
    return int(rank) if rank.isascii() and rank.isdecimal() and len(rank) < 6 else job.leading_rank


def _worker_in_words(names: Sequence[str], rank: int) -> str:
    """Returns the worker's name: that of its role, or else its rank. `names` are those of `Job.worker_names`."""
    name = names[rank] if rank < len(names) else str(rank)
    return f"Worker {name}" if name.isdecimal() else name.capitalize()
