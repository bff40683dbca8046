"""The views of a job's log: the page, the stream of new lines, parts of the log on request, the search, and the raw
file."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from typing import Any

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
from portal.jobs.log_group import (
    MOST_RANKS,
    Line,
    LogGroup,
    Position,
    group_of,
    offset_from,
    position_from,
    text_of_position,
)
from portal.jobs.log_search import BadPattern, Search
from portal.jobs.logs import READ, LogEnd, LogFile, log_end
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
MOST_ATTEMPTS = 50  # that the page lists
RANKS = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?", re.ASCII)


@require_safe
def log(request: UserRequest, pk: int) -> HttpResponse:
    """Shows the log page. When htmx refreshes the page, returns only the job's status above the log, not the log.

    The page shows the workers `?ranks=` (`3`, or `0-7` for several, merged by time), by default the first MOST_RANKS.
    It begins at the end of the log, or at the line of the worker `?rank=` that has the byte offset `?line=`.
    """
    job = visible_job(request, pk)
    names = job.worker_names
    backend = backend_for(job.cluster)
    try:
        ranks = [rank for rank in backend.log_ranks(job_id=pk) if rank < len(names)]
    except LogUnreadable:  # the stream reports the reason
        ranks = []
    if not job.has_ended:  # more workers may write
        ranks = list(range(len(names)))
    ranks = ranks or [_rank(request, job)]
    together = _together(ranks)
    usual = together[0][0] if together and "rank" not in request.GET else str(_rank(request, job))
    asked = _asked_ranks(request, job, default=usual)
    first = int(asked.split("-")[0])
    attempts = backend.log_times(job_id=pk).attempts(first, MOST_ATTEMPTS)
    choices = [*together, *((str(rank), _worker_in_words(names, rank)) for rank in ranks)]
    context = frame(request, job, "log") | {
        "choices": choices,
        "shown": dict(choices).get(asked, f"workers {asked}"),
        "is_merged": "-" in asked,
        "asked": asked,
        "first": first,
        "attempts": [
            (offset, moment.attempt, datetime.fromtimestamp(moment.at / 1000, UTC))
            for offset, moment in attempts
        ],
        "line": offset_from(request.GET.get("line", "")),
        "line_rank": _rank(request, job),
    }
    return render_page(request, "jobs/log.html", context)


def _together(ranks: list[int]) -> list[tuple[str, str]]:
    """Returns the groups of workers whose logs can be shown together: what the address says, and a label."""
    if len(ranks) < 2:
        return []
    if ranks[-1] < MOST_RANKS:
        return [(f"{ranks[0]}-{ranks[-1]}", "All workers")]
    blocks = range(0, ranks[-1] + 1, MOST_RANKS)
    ends = [min(begin + MOST_RANKS - 1, ranks[-1]) for begin in blocks]
    return [(f"{begin}-{end}", f"Workers {begin} to {end}") for begin, end in zip(blocks, ends, strict=True)]


async def log_stream(request: UserRequest, pk: int) -> StreamingHttpResponse:
    """Streams the log as server-sent events while it grows.

    The stream begins at the first of these positions that is known:

    - the header Last-Event-ID, which a browser sends when it reconnects;
    - the query parameter `offset`: such a position, or `end`;
    - the start of a short log, or a line near the end of a long one.

    The id of an event is the position after the event's text. The data of an event
    without a name is {"pieces": [[offset, text, rank, time in ms, attempt], …]}. With several workers, a position
    has an offset for each of them, separated by dots. The named events are:

    - "start", with the first position;
    - "end", when the log is complete;
    - "bye", when the browser should reconnect, because the user's rights may have changed;
    - "problem", with the reason why the log cannot be read.
    """
    user = request.user
    group, asked = await sync_to_async(_prepare_stream)(request, user, pk)
    return stream(follow_log(group, asked, _rights(request, user, pk), _in_pieces))


def _rights(request: UserRequest, user: User, pk: int) -> Rights:
    return Rights(request, user, lambda reader: Job.objects.visible_to(reader).filter(pk=pk).exists())


def _prepare_stream(request: UserRequest, user: User, pk: int) -> tuple[LogGroup, str]:
    group = _log_group(request, _job_of(user, pk))
    return group, request.headers.get("Last-Event-ID") or request.GET.get("offset", "")


def _in_pieces(lines: Sequence[Line]) -> dict[str, Any]:
    return {"pieces": lines}


async def follow_log(
    group: LogGroup, asked: str, rights: Rights, show: Callable[[Sequence[Line]], dict[str, Any]]
) -> AsyncIterator[str]:
    """Yields the events of `log_stream`, from the position `asked` on. `show` returns the data of lines."""
    try:
        position = position_from(asked, group)
        if position is None:
            first = group.sizes if asked == "end" else partial(_tail, group)
            position = await sync_to_async(first, thread_sensitive=False)()
        async with aclosing(_follow(group, position, rights, show)) as events:
            async for each in events:
                yield each
    except LogUnreadable as error:
        yield event(_unreadable(error), name="problem")


def _tail(group: LogGroup) -> Position:
    """Returns the position at which the stream begins by default: the start of short logs, or lines near the end of
    long ones."""
    sizes = group.sizes()
    if sum(sizes) <= TAIL:
        return group.start
    return group.backward(sizes, TAIL)[1]


def _unreadable(error: LogUnreadable) -> dict[str, str]:
    return {"problem": str(error), "code": "log_unreadable"}


async def _follow(
    group: LogGroup, position: Position, rights: Rights, show: Callable[[Sequence[Line]], dict[str, Any]]
) -> AsyncGenerator[str]:
    look = sync_to_async(group.look, thread_sensitive=False)
    at = text_of_position(position)
    yield event({"offset": at}, name="start", event_id=at)
    end: LogEnd | None = None
    checked, spoke = 0.0, time.monotonic()
    unfinished: Sequence[int] = group.start
    until = spoke + LONGEST_STREAM
    while time.monotonic() < until and await rights.hold():
        found = await look(position, unfinished, end)
        position, unfinished, at = found.position, found.unfinished, text_of_position(found.position)
        if found.lines:
            yield event(show(found.lines), event_id=at)
            spoke = time.monotonic()
            continue
        if found.is_complete:
            yield event({"offset": at}, name="end", event_id=at)
            return
        now = time.monotonic()
        if now - checked >= STATE_LOOK:
            # The state is read before the last bytes of the log, so that nothing written before the job's end is
            # missed.
            was, checked = end, now
            job_id = group.files[0].job_id
            try:
                end = await sync_to_async(log_end)(job_id)
            except (Error, Full) as error:  # the state is read again after STATE_LOOK seconds
                logger.warning("whether the log of job %s has ended is not known: %s", job_id, error)
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
    """Returns a part of the log as JSON: about PIECE bytes, and the positions where they begin and end.

    One of three query parameters says which part: `?begin=` for the lines from this position on, `?end=` for the lines
    before it, or `?around=` for the lines around this byte offset of the worker `?of=`, or of the only worker. Answers
    400 if none of them is valid.
    """
    job = visible_job(request, pk)
    group = _log_group(request, job)
    around = offset_from(request.GET.get("around", ""))
    begin, end = (position_from(request.GET.get(name, ""), group) for name in ("begin", "end"))
    try:
        if around is not None:
            rank = _rank(request, job, "of") if "of" in request.GET else group.files[0].rank
            if not any(file.rank == rank for file in group.files):
                raise Http404
            lines, begin, end = group.around(rank, around, PIECE)
        elif begin is not None:
            lines, end = group.forward(begin, PIECE)
        elif end is not None:
            end = tuple(map(min, end, group.sizes()))
            lines, begin = group.backward(end, PIECE)
        else:
            return HttpResponseBadRequest(
                "Send one of the parameters “begin”, “end” and “around”. Its value must be a byte offset: a whole "
                "number, 0 or more; with several workers, one for each, separated by dots."
            )
    except LogUnreadable as error:
        return JsonResponse(_unreadable(error), status=409)
    return JsonResponse({"begin": text_of_position(begin), "end": text_of_position(end), "pieces": lines})


@never_cache
@require_safe
async def log_search(request: UserRequest, pk: int) -> HttpResponse:
    """Searches the log and returns the matching lines as JSON, each by its worker and byte offset.

    A line matches if it contains the text `?q=` or, with `regex=1`, matches `?q=` as a regular expression. The search
    begins at the position `?from=`, and has limits on bytes, time and matches. `next` in the response is the position
    at which another search can continue, or null at the end of the log. The search stops if the client disconnects.
    """
    group = await sync_to_async(_prepare_search)(request.user, request, pk)
    text, asked = request.GET.get("q", ""), request.GET.get("from", "")
    begin = position_from(asked, group) if asked else group.start
    if not text or len(text) > 500:
        return JsonResponse({"problem": "Enter 1 to 500 characters to search for."}, status=422)
    if begin is None:
        return JsonResponse(
            {"problem": "The parameter “from” must be the “next” of another search."}, status=422
        )
    try:
        search = Search(group, text, regex=request.GET.get("regex") == "1", most=MOST_FOUND, begin=begin)
        while await sync_to_async(search.look, thread_sensitive=False)():
            continue
    except BadPattern as problem:
        return JsonResponse({"problem": f"This is not a valid regular expression: {problem}"}, status=422)
    except LogUnreadable as error:
        return JsonResponse(_unreadable(error), status=409)
    goes_on = None if search.next is None else text_of_position(search.next)
    return JsonResponse({"lines": search.found, "complete": goes_on is None, "next": goes_on})


def _prepare_search(user: User, request: UserRequest, pk: int) -> LogGroup:
    return _log_group(request, _job_of(user, pk))


async def log_raw(request: UserRequest, pk: int) -> HttpResponseBase:
    """Returns the whole log as a download: of one worker exactly the bytes that it wrote; of several (`?ranks=0-7`) a
    text in which their lines are merged by time, each after its time and its worker."""
    user = request.user
    try:
        group, name, sizes = await sync_to_async(_prepare_raw)(request, user, pk)
    except LogUnreadable as error:
        return HttpResponse(str(error), content_type="text/plain; charset=utf-8", status=409)
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
    if len(group.files) == 1:
        content = _bytes_of(group.files[0], sizes[0])
        headers["Content-Length"] = str(sizes[0])
    else:
        content = merged_bytes(group, sizes)
    return StreamingHttpResponse(
        while_allowed(content, _rights(request, user, pk)),
        content_type="application/octet-stream",
        headers=headers,
    )


def _prepare_raw(request: UserRequest, user: User, pk: int) -> tuple[LogGroup, str, Position]:
    job = _job_of(user, pk)
    group = _log_group(request, job)
    ranks = "-to-".join(str(file.rank) for file in dict.fromkeys((group.files[0], group.files[-1])))
    return group, f"{slugify(job.name) or 'job'}-{pk}-rank-{ranks}.log", group.sizes()


async def merged_bytes(
    group: LogGroup, sizes: Position, names: Mapping[int, str] | None = None
) -> AsyncIterator[bytes]:
    """Yields the lines up to `sizes`, and those that are read together with them, each after its time and its worker.

    `names`: what to call each log, by its key; by default the key itself, the rank of a worker.
    """
    forward = sync_to_async(group.forward, thread_sensitive=False)
    position = group.start
    while any(at < size for at, size in zip(position, sizes, strict=True)):
        try:
            lines, position = await forward(position, 4 * READ)
        except LogUnreadable as error:
            logger.warning("job %s: %s", group.files[0].job_id, error)
            yield f"The rest of the log cannot be read: {error}\n".encode()
            return
        if not lines:  # removed, or cut, meanwhile
            return
        yield "".join(_as_text(line, (names or {}).get(line.rank, str(line.rank))) for line in lines).encode()


def _as_text(line: Line, name: str) -> str:
    at = datetime.fromtimestamp(line.at / 1000, UTC).isoformat(timespec="milliseconds") if line.at else "-"
    text = line.text.rstrip("\r\n")
    return f"{at} {name} {text}\n"


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


def _log_group(request: UserRequest, job: Job) -> LogGroup:
    first, _, last = _asked_ranks(request, job, default=str(_rank(request, job))).partition("-")
    group = group_of(job, range(int(first), int(last or first) + 1))
    if group is None:
        raise Http404
    return group


def _asked_ranks(request: UserRequest, job: Job, *, default: str) -> str:
    """Returns the query parameter `ranks`, if it names workers of the job, otherwise the default."""
    found = RANKS.fullmatch(request.GET.get("ranks", ""))
    if found is None:
        return default
    if int(found[2] or found[1]) >= len(job.worker_names):
        raise Http404
    return found[0]


def _rank(request: UserRequest, job: Job, name: str = "rank") -> int:
    """Returns the rank that the URL names, or else that of the worker that stands for the job."""
    rank = request.GET.get(name, "")
    return int(rank) if rank.isascii() and rank.isdecimal() and len(rank) < 6 else job.leading_rank


def _worker_in_words(names: Sequence[str], rank: int) -> str:
    """Returns the worker's rank, which each line of a merged log has, and its name if it has a role.

    `names` are those of `Job.worker_names`.
    """
    name = names[rank] if rank < len(names) else str(rank)
    return f"Worker {rank}" if name == str(rank) else f"Worker {rank}: {name}"
