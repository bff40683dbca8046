"""Actions on sessions: start sessions, keep them (restart their idle timeout), stop them, and record their use.

Also warns users whose sessions are near their idle timeout or time limit, and stops sessions that have reached one.

The portal decides which users may open a session.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from django.db import models, transaction
from django.db.models.functions import Now
from django.utils.crypto import salted_hmac

from accounting.access import audit
from accounting.core.clock import now_from_database
from accounting.core.errors import NotAllowed, Refused
from accounting.models import Tenant, User
from scheduling.core.announcing import announce_to_owner
from scheduling.core.event_texts import sentence_of
from scheduling.jobs.actions import cancel_within
from scheduling.jobs.code_from_git import fetches_code
from scheduling.jobs.programs import check_program
from scheduling.jobs.submitting import submit_within
from scheduling.leases.history import note_now
from scheduling.models import Cluster, Job, Session
from scheduling.models.event_codes import EventCode, Message
from scheduling.sessions.files import check_copy, source_of
from scheduling.sessions.idle_timeout import Clocks, Step
from scheduling.spec.job_spec import JobSpec, SpecError

# Priority of sessions, above what users may ask for: a user who waits for a notebook can do nothing else.
FIRST = 1000
LIMITS = {"idle_minutes": (5, 7 * 24 * 60), "longest_hours": (1, 30 * 24)}
# Minimum interval between updates of a session's last use, to save writes.
NOTED_EVERY = timedelta(seconds=20)
NO_TIMES = timedelta(0), timedelta(0)  # idle times of a session that has not run yet


@fetches_code
@transaction.atomic(durable=True)
def start_session(
    *,
    actor: User,
    tenant: Tenant,
    cluster: Cluster,
    spec: JobSpec,
    kind: str = Session.Kind.NOTEBOOK,
    idle_minutes: int = 60,
    longest_hours: int = 12,
    files_from: Session | None = None,
    request_key: str | None = None,
    even_if_never: bool = True,
) -> Session:
    """Starts a session owned by `actor` in `tenant`. If `request_key` was used before, returns the earlier session.

    - `kind`: a Session.Kind, which says how the proxy speaks to the session's program.
    - `idle_minutes`: how long the session may run unused before it is stopped.
    - `longest_hours`: the time limit, after which the session is stopped even if it is in use.
    - `files_from`: an ended session whose files the new one copies before its program starts.

    Raises the same errors as `submit_job`. Also raises Refused if the files cannot be copied, and SpecError if the spec
    cannot be a session (it has several workers or no port), or if one of these limits is out of bounds. If
    `even_if_never` is False, also raises SpecError if the program is not installed in the environment.
    """
    _check(spec, idle_minutes=idle_minutes, longest_hours=longest_hours)
    if kind not in Session.Kind.values:
        raise SpecError({"kind": f"must be one of: {', '.join(Session.Kind.values)}"})
    if not even_if_never:
        check_program(cluster, spec)
    job = submit_within(
        actor=actor,
        tenant=tenant,
        cluster=cluster,
        spec=spec,
        request_key=request_key,
        even_if_never=even_if_never,
        reader=actor,
        why=Message.of(EventCode.SESSION_BEGUN, user=actor.get_username()),
        replica={"kind": Job.Kind.SESSION, "priority": FIRST},
    )
    if job.kind != Job.Kind.SESSION:
        raise Refused(
            "This request key was already used for a job that is not a session. Use a new key.",
            field="request_key",
        )
    limits = {"idle_minutes": idle_minutes, "longest_hours": longest_hours}
    if (known := Session.objects.filter(pk=job.pk).first()) is not None:
        return known
    if files_from is not None:
        files_from = source_of(files_from)
        check_copy(actor=actor, earlier=files_from, tenant=tenant, cluster=cluster)
    earlier = files_from.pk if files_from is not None else None
    session = Session.objects.create(job=job, kind=kind, files_from_id=earlier, **limits)
    said = {"kind": kind, **limits, **({"files_from": earlier} if earlier else {})}
    audit.record(actor=actor, verb="session.start", target=job, tenant=tenant, after=said)
    return session


@transaction.atomic(durable=True)
def keep_session(*, actor: User, session: Session) -> Session:
    """Restarts the idle timeout of the session from now. Raises Refused if the session has ended."""
    job = _changeable(actor, session)
    locked = Session.objects.select_for_update().get(pk=session.pk)
    if job.has_ended:
        raise Refused("This session has ended.")
    now = now_from_database()
    locked.used_at = max(locked.used_at or now, now)
    locked.save(update_fields=["used_at"])
    note_now(job, "kept", Message.of(EventCode.SESSION_KEPT, user=actor.get_username()), at=now)
    audit.record(actor=actor, verb="session.keep", target=job, tenant=job.tenant)
    return locked


@transaction.atomic(durable=True)
def stop_session(*, actor: User, session: Session) -> Job:
    """Stops the session, with the usual grace period. Does nothing if it is stopped already."""
    why = Message.of(EventCode.STOPPED_BY, user=actor.get_username())
    return cancel_within(actor=actor, job=_changeable(actor, session), why=why)


def note_use(*, session_id: int) -> None:
    """Records that the session is being used now. Writes to the database at most once per NOTED_EVERY."""
    stale = models.Q(used_at=None) | models.Q(used_at__lt=Now() - NOTED_EVERY)
    Session.objects.filter(stale, pk=session_id).update(used_at=Now())


def sessions_to_step() -> models.QuerySet[Session]:
    """Returns the sessions that may need a warning or a stop. Leaves out sessions that have ended or are being
    cancelled."""
    return Session.objects.unfinished().exclude(job__state=Job.State.CANCELLING)


@transaction.atomic(durable=True)
def step_session(*, session_id: int) -> Step:
    """Warns the user of a session or stops the session, if its idle timeout or time limit requires this now.

    Returns the step that was taken. Any number of workers may call this at any time.
    """
    session = Session.objects.select_for_update().filter(pk=session_id).first()
    if session is None:
        return Step.NOTHING
    job = Job.objects.select_related("tenant").get(pk=session.pk)
    if job.has_ended or job.state == Job.State.CANCELLING:
        return Step.NOTHING
    now = now_from_database()
    clocks = clocks_of(session, job, now)
    step = clocks.step()
    match step:
        case Step.WARN_IDLE:
            session.warned_at = now
            left = _minutes(replace(clocks, idle_warned=timedelta(0)).idle_left)
            said = Message.of(EventCode.SESSION_IDLE_WARNED, minutes=left)
            _warn(job, said, now, "idle")
        case Step.WARN_END:
            session.end_warned_at = now
            ends = replace(clocks, end_warned=now).ends
            left = _minutes(ends - now if ends else timedelta(0))
            said = Message.of(EventCode.SESSION_END_WARNED, hours=session.longest_hours, minutes=left)
            _warn(job, said, now, "end")
        case Step.STOP_IDLE:
            _stop(job, "idle", Message.of(EventCode.SESSION_IDLE, minutes=session.idle_minutes))
        case Step.STOP_END:
            _stop(job, "longest", Message.of(EventCode.SESSION_OVER, hours=session.longest_hours))
    session.save(update_fields=["warned_at", "end_warned_at"])
    return step


def _warn(job: Job, said: Message, now: datetime, what: str) -> None:
    note_now(job, "warned", said, at=now)
    announce_to_owner(job, "Session stops soon", sentence_of(said), key=f"{what}:{now.isoformat()}")


def clocks_of(session: Session, job: Job, now: datetime) -> Clocks:
    """Returns the session's idle time and time limits as Clocks. Makes one query for the idle time."""
    idle = Session.objects.filter(pk=session.pk).idle_times(now)
    return clocks_from(session, job, now, idle.get(session.pk, NO_TIMES))


def clocks_from(session: Session, job: Job, now: datetime, idle: tuple[timedelta, timedelta]) -> Clocks:
    """Returns the session's idle time and time limits as Clocks.

    `idle` is the session's pair of durations from SessionQuerySet.idle_times.
    """
    stands = session.warned_at and (session.used_at is None or session.warned_at > session.used_at)
    return Clocks(
        now=now,
        idle_limit=timedelta(minutes=session.idle_minutes),
        longest=timedelta(hours=session.longest_hours),
        runs=job.state == Job.State.RUNNING,
        idle_for=idle[0],
        idle_warned=idle[1] if stands else None,
        first_started=job.first_started_at,
        end_warned=session.end_warned_at,
    )


def base_url(job: Job) -> str:
    """Returns the URL path under which the portal's proxy serves the session."""
    return f"/sessions/{job.pk}/proxy/"


def token_of(job: Job) -> str:
    """Returns a secret token that the portal sends to the session's program with each request.

    The program can then refuse other clients of its port. The token is the same in all attempts of the job, because
    frozen processes resume with the token with which they were started.
    """
    return salted_hmac("fairlot.session", str(job.pk), algorithm="sha256").hexdigest()


def _stop(job: Job, why: str, said: Message) -> None:
    cancel_within(actor=None, job=job, why=said)
    audit.record(actor=None, verb="session.stop", target=job, tenant=job.tenant, after={"why": why})


def _changeable(actor: User, session: Session) -> Job:
    job = Job.objects.changeable_by(actor).select_related("tenant").filter(pk=session.pk).first()
    if job is None:
        raise NotAllowed(
            "Only the owner, a manager of the team or an operator may stop this session, or reset its idle timeout."
        )
    return job


def _check(spec: JobSpec, **limits: Any) -> None:
    problems = spec.problems_of_endless()
    if spec.workers != 1:
        problems["workers"] = "must be 1, because a session has only one worker"
    if spec.port is None:
        problems["port"] = "must be set, because the program of a session must answer at a port"
    for name, value in limits.items():
        least, most = LIMITS[name]
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            problems[name] = f"must be a whole number from {least} to {most}"
    if problems:
        raise SpecError(problems)


def _minutes(left: timedelta) -> int:
    return max(1, round(left.total_seconds() / 60))
