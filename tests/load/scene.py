"""Fills a running portal for the benchmark: teams, signed-in users, and ended and waiting jobs.

Usage: python -m tests.load.scene NAME JSON-ARGUMENTS, with the portal's settings in the environment. NAME is `fill`
or `rounds`; the result is printed as JSON.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import django

django.setup()

from django.conf import settings  # noqa: E402 - models need Django's set-up
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY  # noqa: E402
from django.contrib.sessions.backends.db import SessionStore  # noqa: E402
from django.contrib.sessions.models import Session  # noqa: E402
from django.db import connection, transaction  # noqa: E402
from django.utils.crypto import get_random_string  # noqa: E402

from accounting.actions import create_tenant  # noqa: E402
from accounting.core.clock import now_from_database  # noqa: E402
from accounting.ledger import Usage, book_usage  # noqa: E402
from accounting.models import Membership, Tenant, User  # noqa: E402
from portal.models import Scope  # noqa: E402
from portal.tokens.actions import create_token  # noqa: E402
from scheduling.models import Cluster, Job, JobEvent, Lease, Node  # noqa: E402
from scheduling.spec.job_spec import JobSpec  # noqa: E402

USERS_PER_TEAM = 10
SIGNED_IN_WITH = "django.contrib.auth.backends.ModelBackend"


def fill(*, users: int, jobs: int, waiting: int) -> dict[str, Any]:
    """Creates users in teams of ten, and ended and waiting jobs. Returns each user's session key, API token, live
    topics and job ids."""
    dice = random.Random(26)
    cluster = Cluster.objects.get()
    people = _people(users)
    ended = _ended_jobs(cluster, people, jobs, dice)
    _waiting_jobs(cluster, people, waiting, dice)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    by_team: dict[int, list[int]] = {}
    for job in ended:
        by_team.setdefault(job.tenant_id, []).append(job.pk)
    sessions = _sign_in([user for user, _ in people])
    return {
        "cluster": cluster.pk,
        "database": settings.DATABASES["default"]["NAME"],
        "cookie": settings.SESSION_COOKIE_NAME,
        "users": [
            {
                "name": user.get_username(),
                "session": sessions[user.pk],
                "token": create_token(actor=user, name="bench", scopes=Scope.values, days=1)[1],
                "team": team.slug,
                "topics": f"jobs:{team.pk}",
                "jobs": by_team.get(team.pk, [])[:200],
            }
            for user, team in people
        ],
    }


def rounds(*, cluster: int, seconds: float) -> dict[str, Any]:
    """Observes for `seconds` the rounds that start because the cluster's quantum has ended.

    Returns a dictionary:
    - "rounds": the number of these rounds.
    - "overdue": the longest delay of a round, in seconds.
    - "quanta": the least and the greatest effective quantum, in seconds. The effective quantum is the configured
      quantum, or longer if gangs take long to stop and start.
    """
    until, overdue, quanta, numbers = time.monotonic() + seconds, 0.0, set(), set()
    while time.monotonic() < until:
        held = Cluster.objects.get(pk=cluster)
        last = held.rounds.filter(kind="quantum").order_by("-number").values("number", "at").first()
        if last is not None:
            numbers.add(last["number"])
            quanta.add(held.effective_quantum)
            waited = (now_from_database() - last["at"]).total_seconds()
            overdue = max(overdue, waited - held.effective_quantum)
        time.sleep(0.25)
    return {"rounds": len(numbers) - 1, "overdue": overdue, "quanta": [min(quanta), max(quanta)]}


def _people(users: int) -> list[tuple[User, Tenant]]:
    university = Tenant.objects.get(name="University")
    teams = [
        create_tenant(actor=None, name=f"Load {number}", parent=university)
        for number in range(-(-users // USERS_PER_TEAM))
    ]
    made = [User(username=f"load-{number}") for number in range(users)]
    for user in made:
        user.set_unusable_password()
    User.objects.bulk_create(made)
    people = [(user, teams[number // USERS_PER_TEAM]) for number, user in enumerate(made)]
    Membership.objects.bulk_create(
        Membership(
            user=user,
            tenant=team,
            role=Membership.Role.MEMBER if number % USERS_PER_TEAM else Membership.Role.MANAGER,
        )
        for number, (user, team) in enumerate(people)
    )
    return people


def _sign_in(users: list[User]) -> dict[int, str]:
    """Creates a session for each user, as the login page does. Returns the session keys by user id."""
    store = SessionStore()
    keys = {user.pk: get_random_string(32, "abcdefghijklmnopqrstuvwxyz0123456789") for user in users}
    Session.objects.bulk_create(
        Session(
            session_key=keys[user.pk],
            session_data=store.encode(
                {
                    SESSION_KEY: str(user.pk),
                    BACKEND_SESSION_KEY: SIGNED_IN_WITH,
                    HASH_SESSION_KEY: user.get_session_auth_hash(),
                }
            ),
            expire_date=now_from_database() + timedelta(days=1),
        )
        for user in users
    )
    return keys


def _ended_jobs(
    cluster: Cluster, people: list[tuple[User, Tenant]], count: int, dice: random.Random
) -> list[Job]:
    """Creates `count` ended jobs of the last 20 days, each with a lease, events, and usage in the ledger."""
    now = now_from_database()
    generations = [
        node.generation for node in Node.objects.filter(cluster=cluster).select_related("generation")
    ]
    spec = JobSpec(name="bench", command="true").to_dict()
    jobs, runs = [], []
    for number in range(count):
        user, team = people[number % len(people)]
        begins = now - timedelta(days=1 + 19 * dice.random())
        lasts = timedelta(minutes=5 + 50 * dice.random())
        runs.append((begins, begins + lasts))
        jobs.append(
            Job(
                cluster=cluster, tenant=team, owner=user, name=f"train {number}", spec=spec, workers=1,
                gpus_per_worker=1, state=Job.State.FAILED if number % 9 == 0 else Job.State.SUCCEEDED, epoch=1,
                created_at=begins - timedelta(minutes=3), state_since=begins + lasts, first_started_at=begins,
                ended_at=begins + lasts, end_reason="succeeded",
                first_generation=generations[number % len(generations)],
                held_for=lasts,
            )
        )  # fmt: skip
    Job.objects.bulk_create(jobs)
    leases = [
        Lease(
            job=job, cluster=cluster, epoch=1, generation=job.first_generation, gpus=1, state=Lease.State.CLOSED,
            decided_at=begins, held_from=begins, running_from=begins,
            held_until=ends, billed_until=ends, last_seen_at=ends, end_reason="succeeded",
        )
        for job, (begins, ends) in zip(jobs, runs, strict=True)
    ]  # fmt: skip
    Lease.objects.bulk_create(leases)
    JobEvent.objects.bulk_create(
        JobEvent(job=job, at=at, epoch=epoch, kind=kind, text=text)
        for job, (begins, ends) in zip(jobs, runs, strict=True)
        for at, epoch, kind, text in (
            (job.created_at, 0, "submitted", f"Submitted by {job.owner.get_username()}"),
            (begins, 1, "start", "Given 1 GPU"),
            (ends, 1, "succeed", "Ended"),
        )
    )
    with transaction.atomic():
        book_usage(
            [
                Usage(
                    book=cluster.pk, lease_id=lease.pk, job_id=job.pk, job_name=job.name, tenant=job.tenant,
                    user=job.owner, generation=lease.generation, gpus=1, begins=begins,
                    ends=ends, running_from=begins,
                )
                for job, lease, (begins, ends) in zip(jobs, leases, runs, strict=True)
            ]
        )  # fmt: skip
    return jobs


def _waiting_jobs(
    cluster: Cluster, people: list[tuple[User, Tenant]], count: int, dice: random.Random
) -> None:
    """Creates `count` waiting jobs. Their command only sleeps, so that a started job takes no CPU time from the
    portal."""
    jobs = []
    for number in range(count):
        user, team = dice.choice(people)
        spec = JobSpec(name=f"wait {number}", command="sleep 600", environment="system")
        jobs.append(
            Job(cluster=cluster, tenant=team, owner=user, name=spec.name, spec=spec.to_dict(), workers=1,
                gpus_per_worker=1)
        )  # fmt: skip
    Job.objects.bulk_create(jobs)


if __name__ == "__main__":
    names: dict[str, Callable[..., object]] = {"fill": fill, "rounds": rounds}
    sys.stdout.write(json.dumps(names[sys.argv[1]](**json.loads(sys.argv[2]))) + "\n")
