"""Endpoints for the lines of a job's logs: read those of several workers merged by time, and search."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

from django.http.response import HttpResponseBase
from ninja import Query, Router
from ninja.errors import HttpError

from portal.api.auth import reader_of
from portal.api.document import MAY_CONFLICT
from portal.api.event_streams import EVENTS, position_of, stream_to
from portal.api.fields import IN_DIGITS, AskedFlag
from portal.api.jobs.endpoints import visible_job
from portal.api.logs.schemas import LogLine, LogLines, LogMatches
from portal.jobs.files import keep_right
from portal.jobs.log_group import (
    MOST_RANKS,
    Line,
    LogGroup,
    Position,
    group_of,
    position_from,
    text_of_position,
)
from portal.jobs.log_search import BadPattern, Found, search
from portal.jobs.log_views import follow_log
from portal.jobs.logs import READ, log_end
from portal.user_request import ApiRequest
from scheduling.backends.base import LogUnreadable
from scheduling.backends.logtimes import Moment
from scheduling.models import Job

router = Router(tags=["Jobs"])
MOST_MATCHES = 100
MOST_CONTEXT = 20

Rank = Annotated[int, Query(ge=0, le=10**6), IN_DIGITS]
Text = Annotated[str, Query(min_length=1, max_length=500)]
Place = Annotated[str, Query(max_length=20 * MOST_RANKS)]
Context = Annotated[int, Query(ge=0, le=MOST_CONTEXT), IN_DIGITS]


@router.get(
    "/jobs/{int:job_id}/log/lines", response=LogLines, url_name="job_log_lines", openapi_extra=MAY_CONFLICT
)
def lines(
    request: ApiRequest, job_id: int, first_rank: Rank = 0, last_rank: Rank | None = None, after: Place = ""
) -> dict[str, Any]:
    """Returns the next lines of the workers from `first_rank` to `last_rank`, merged by time.

    Without `last_rank`, all workers from `first_rank` on, at most 64. Pass `next` as `after` to continue; while the job
    runs, an answer without lines means that there are no new ones yet.
    """
    job = visible_job(request, job_id)
    group = _group(job, first_rank, last_rank)
    position = _position(after, group)
    end = log_end(job.pk)
    try:
        found = group.look(position, group.start, end)
    except LogUnreadable as error:
        raise HttpError(409, str(error)) from None
    return {
        "items": [_show(line) for line in found.lines],
        "next": text_of_position(found.position),
        "complete": found.is_complete,
    }


@router.get("/jobs/{int:job_id}/log/stream", url_name="job_log_events", openapi_extra=EVENTS)
def follow(
    request: ApiRequest, job_id: int, first_rank: Rank = 0, last_rank: Rank | None = None, after: Place = ""
) -> HttpResponseBase:
    """Streams the lines of the workers from `first_rank` to `last_rank`, merged by time, while the job writes them.

    An event without a name has lines: `{"items": [...]}`, as `/log/lines` shows them. Its id is the position after
    them: send it as the header Last-Event-ID, or as `after`, to continue. Without a position, the stream begins at the
    start of a short log, or near the end of a long one; with `end`, at the end. The event `start` has the first
    position; `end` says that the job has ended and all is sent; `problem`, why the log cannot be read; `bye`, that the
    caller should connect again, after ten minutes or because rights may have changed.
    """
    job = visible_job(request, job_id)
    group = _group(job, first_rank, last_rank)
    rights = keep_right(request, request.auth, job, reader_of(request))
    return stream_to(request, follow_log(group, position_of(request, after), rights, _as_items))


@router.get(
    "/jobs/{int:job_id}/log/search",
    response=LogMatches,
    url_name="job_log_matches",
    openapi_extra=MAY_CONFLICT,
)
def find(
    request: ApiRequest,
    job_id: int,
    *,
    q: Text,
    regex: AskedFlag = False,
    context: Context = 0,
    first_rank: Rank = 0,
    last_rank: Rank | None = None,
    after: Place = "",
) -> dict[str, Any]:
    """Returns at most 100 lines that contain the text `q`, or that match the regular expression `q`. Case and colours
    do not count.

    Regular expressions have the syntax of RE2. `context` is the number of lines before and after each match. Without
    `last_rank`, all workers from `first_rank` on are searched, at most 64.
    """
    job = visible_job(request, job_id)
    group = _group(job, first_rank, last_rank)
    try:
        found, following = search(group, q, regex=regex, most=MOST_MATCHES, begin=_position(after, group))
        matches = [match for each in found if (match := _match(group, each, context))]
    except BadPattern as problem:
        raise HttpError(422, f"q: this is not a valid regular expression: {problem}") from None
    except LogUnreadable as error:
        raise HttpError(409, str(error)) from None
    return {"items": matches, "next": None if following is None else text_of_position(following)}


def _group(job: Job, first: int, last: int | None) -> LogGroup:
    if last is None:
        last = min(len(job.worker_names), first + MOST_RANKS) - 1
    group = group_of(job, range(first, last + 1))
    if group is None:
        highest = len(job.worker_names) - 1
        raise HttpError(
            404, f"The job has the ranks 0 to {highest}, of which at most {MOST_RANKS} can be read together."
        )
    return group


def _position(text: str, group: LogGroup) -> Position:
    if not text:
        return group.start
    position = position_from(text, group)
    if position is None:
        raise HttpError(422, "after: this is not the `next` of an answer for the same ranks.")
    return position


def _match(group: LogGroup, found: Found, context: int) -> dict[str, Any] | None:
    """Returns a matching line with the lines of its worker around it; None if the log has been removed meanwhile."""
    own = LogGroup([file for file in group.files if file.rank == found.rank])
    after, _ = own.forward((found.offset,), READ)
    if not after:
        return None
    before: Sequence[Line] = own.backward((found.offset,), READ)[0] if context else ()
    return _show(after[0]) | {
        "before": [line.text for line in before[len(before) - context :]] if context else [],
        "after": [line.text for line in after[1 : 1 + context]],
    }


def _as_items(lines: Sequence[Line]) -> dict[str, Any]:
    return {"items": [LogLine(**_show(line)).model_dump(mode="json") for line in lines]}


def _show(line: Line) -> dict[str, Any]:
    moment = Moment(line.attempt, line.at)
    return {
        "rank": line.rank,
        "offset": line.offset,
        "at": datetime.fromtimestamp(moment.at / 1000, UTC) if moment.at else None,
        "attempt": moment.attempt or None,
        "text": line.text,
    }
