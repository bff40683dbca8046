"""Decides who may open a terminal through a WebSocket, and notes when it is open. All functions query the database."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from uuid import UUID

from django.conf import settings
from django.contrib.auth import get_user
from django.http import HttpRequest

from accounting.core.errors import NotAllowed, Refused
from accounting.models import User
from portal.models import Scope
from portal.tokens.actions import find_token
from scheduling.backends.base import Backend, BackendError, OpenTerminal, TerminalElsewhere
from scheduling.clusters.backend_factory import backend_for
from scheduling.clusters.isolation import is_trusted
from scheduling.models import Cluster, Job, Terminal
from scheduling.terminals import actions


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks for a terminal: a browser with its login session, or a program with an API token."""

    login: str  # the session's key; "" if there is none
    bearer: str  # the token; "" if there is none
    origin: str  # the network address
    is_local: bool  # whether the caller is on this machine


@dataclass(frozen=True, slots=True)
class Wish:
    """The terminal that a caller asks for: the open one named `key`, or a new one beside a worker if `key` is None."""

    job: int
    worker: int
    key: UUID | None
    rows: int
    columns: int
    answers_pings: bool
    wants_earlier: bool  # output, from before it came back to a shell


class Barred(Exception):
    """Raised if the caller gets no terminal. The message gives the reason; empty if the caller may not even know that
    the job exists."""


def user_of(caller: Caller) -> User | None:
    """Returns the caller; None if the login has ended, or the token is invalid or may not change jobs."""
    if caller.bearer:
        token = find_token(caller.bearer)
        return token.user if token and Scope.WORK in token.scopes else None
    if not caller.login:
        return None
    request = HttpRequest()
    request.session = import_module(settings.SESSION_ENGINE).SessionStore(caller.login)
    user = get_user(request)  # the same check as on pages
    return user if isinstance(user, User) else None


def admit(caller: Caller, wish: Wish) -> tuple[Terminal, Backend]:
    """Returns the terminal that the caller wishes, and the backend of its job. Raises Barred.

    Terminals in jobs on this machine are for clients on this machine, unless FAIRLOT_LOCAL_BEYOND_LOOPBACK is set.
    """
    user = user_of(caller)
    if user is None:
        raise Barred
    jobs = Job.objects.visible_to(user).select_related("tenant", "cluster")
    job = jobs.filter(pk=wish.job).first()
    if job is None:
        raise Barred
    if job.cluster.backend == Cluster.Backend.LOCAL and not (
        settings.FAIRLOT_LOCAL_BEYOND_LOOPBACK or caller.is_local
    ):
        raise Barred("This job runs on Fairlot's own machine, which gives terminals to clients on it only.")
    try:
        if wish.key is not None:
            terminal = actions.find_terminal(actor=user, job=job, key=wish.key)
            if not actions.keep_terminal(actor=user, terminal=terminal):
                raise Barred("The terminal has ended.")
        else:
            terminal = actions.open_terminal(actor=user, job=job, worker=wish.worker, origin=caller.origin)
    except (NotAllowed, Refused) as error:
        raise Barred(str(error)) from None
    return terminal, backend_for(job.cluster)


def connect(terminal: Terminal, backend: Backend, wish: Wish) -> OpenTerminal:
    """Opens the terminal in the job's gang. Raises Barred, and notes that the terminal has ended, if that fails."""
    try:
        return backend.open_terminal(
            job_id=terminal.job_id,
            key=str(terminal.pk),
            rows=wish.rows,
            columns=wish.columns,
            rank=terminal.worker if wish.key is None else None,
            is_trusted=is_trusted(terminal.user),
        )
    except TerminalElsewhere as elsewhere:
        words = f"{elsewhere} {elsewhere.how}"
    except BackendError as error:
        words = str(error)
    actions.close_terminal(terminal=terminal.pk, reason=words)
    raise Barred(words)


def is_still(caller: Caller, terminal: Terminal) -> bool:
    """Returns whether the caller may keep the terminal, and notes that it is still open."""
    user = user_of(caller)
    return (
        user is not None
        and user.pk == terminal.user_id
        and actions.keep_terminal(actor=user, terminal=terminal)
    )


def left(terminal: Terminal) -> None:
    actions.leave_terminal(terminal=terminal.pk)


def ended(terminal: Terminal, reason: str) -> None:
    actions.close_terminal(terminal=terminal.pk, reason=reason)
