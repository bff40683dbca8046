"""The scene, the standard objects of portal tests: jobs, shares, trades, bookings and audit events of the team Astro,
and a few of Bio."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction

from accounting import actions
from accounting.actions.requests import ask
from accounting.core.clock import now_from_database
from accounting.ledger import Usage, book_usage
from accounting.models import Generation, Membership, Quota, Request, Tenant, User
from portal.models import ApiToken, Scope
from portal.tokens.actions import create_token
from scheduling.jobs.drafts import save_draft
from scheduling.jobs.secrets import create_secret
from scheduling.models import (
    Job,
    Node,
    Round,
    Schedule,
    ScheduleRun,
    Secret,
    Service,
    ShareBalance,
    ShareInterval,
    Trade,
    Volume,
)
from scheduling.pipelines.actions import create_pipeline
from scheduling.pipelines.definition import Definition
from scheduling.schedules.actions import Terms, create_schedule
from scheduling.services.actions import create_service
from scheduling.sessions.actions import start_session
from scheduling.spec.job_spec import JobSpec
from scheduling.sweeps.actions import Rules, create_sweep
from scheduling.sweeps.parameters import Parameters
from scheduling.templates.actions import publish_template
from tests.make import LONG_AGO, Cast
from tests.scheduling.world import World, world

SECRETS = ("Astro", "astro", "alice", "Alice", "bob", "Bob", "supernova", "SUPERNOVA")


def secrets_in(page: str) -> list[str]:
    """Returns the names from SECRETS, which only Astro may see, that occur on the page at the beginning of a word.

    A name inside a word does not count, because one in two thousand random tokens contains "bob".
    """
    return re.findall(rf"\b(?:{'|'.join(SECRETS)})", page)


@dataclass
class Scene:
    world: World
    job: Job  # Bob's running job in Astro
    waiting: Job  # Alice's waiting job in Astro
    other: Job  # Charlie's job in Bio
    trade: Trade  # Astro is the seller, Bio the buyer
    quota: Quota
    membership: Membership  # Bob's membership in Astro
    token: ApiToken  # Bob's API token
    secret: str
    team_secret: Secret  # a secret of Astro
    volume: Volume  # a volume of Astro
    request: Request  # Alice's open request for Astro
    schedule: Schedule  # Bob's schedule in Astro, due next New Year
    service: Service  # Bob's service in Astro, without replicas

    @property
    def people(self) -> Cast:
        return self.world.people

    @property
    def node(self) -> Node:
        return self.world.cluster.nodes.get(name="v100-0")


def with_a_session(scene: Scene) -> Scene:
    """Creates a notebook session of Bob's in Astro, which waits for GPUs, a sweep and a pipeline, which have no jobs
    yet, a draft of Bob's, and a template of Alice's. Returns the scene."""
    spec = JobSpec(name="supernova-notes", command="serve", port=8000)
    people = scene.people
    start_session(actor=people.bob, tenant=people.astro, cluster=scene.world.cluster, spec=spec)
    create_sweep(
        actor=people.bob,
        tenant=people.astro,
        cluster=scene.world.cluster,
        spec=JobSpec(name="supernova-tune", command="train {lr}"),
        parameters=Parameters("grid", grid={"lr": [0.1, 0.01]}),
        rules=Rules(metric="loss"),
    )
    steps = {"prepare": {"command": "go"}, "train": {"command": "train", "needs": ["prepare", scene.job.pk]}}
    create_pipeline(
        actor=people.bob,
        tenant=people.astro,
        cluster=scene.world.cluster,
        definition=Definition.parse({"name": "supernova-line", "steps": steps}),
    )
    publish_template(
        actor=people.alice,
        tenant=people.astro,
        name="supernova-template",
        description="Trains the model of the supernova.",
        spec={"name": "supernova-{lr}", "command": "train {lr}"},
        parameters=[{"name": "lr", "type": "number", "default": 0.1}],
    )
    save_draft(
        actor=people.bob,
        kind="job",
        name="supernova-later",
        request_key="later",
        content={"fields": {"name": "supernova-later"}, "team": people.astro.pk},
    )
    return scene


def scene() -> Scene:
    made = world(v100=4, a100=4)
    cast = made.people
    job = made.submit(
        cast.bob, cast.astro, gpus=4, name="supernova", variables={"SUPERNOVA": "1987A"}, priority=3
    )
    other = made.submit(cast.charlie, cast.bio, gpus=4, name="genome")
    made.quantum()
    made.carry_out()
    waiting = made.submit(cast.alice, cast.astro, gpus=4, workers=2, name="supernova-next")
    made.fill()  # not `quantum`, which might preempt Bob's job
    first = Round.objects.earliest("number")
    now = now_from_database()
    share(first, cast.astro, cast.v100, ends=now, entitled=7200, received=5400, lent=1800)
    share(first, cast.bio, cast.v100, ends=now, entitled=7200, received=9000, borrowed=1800)
    share(first, cast.astro, cast.a100, ends=now, entitled=3600, received=1800, sold=1800)
    trade = Trade.objects.create(
        round=first, seller=cast.astro, buyer=cast.bio, slow=cast.v100, fast=cast.a100, fast_gpus=0.9,
        slow_gpus=1.971, price=2.19, seller_speedup=1.2, buyer_speedup=4.0,
        begins=now - timedelta(minutes=30), ends=now - timedelta(minutes=29),
    )  # fmt: skip
    ShareBalance.objects.update_or_create(
        cluster=made.cluster, tenant=cast.astro, user=cast.bob, generation=cast.v100, defaults={"owed": 720.0}
    )
    book(job, cast.bob, cast.a100, gpus=4, minutes=45, lease=9001)
    book(waiting, cast.alice, cast.v100, gpus=2, minutes=30, lease=9002)
    book(other, cast.charlie, cast.v100, gpus=4, minutes=15, lease=9003)
    quota = actions.set_quota(actor=cast.ada, tenant=cast.astro, kind=Quota.Kind.GPUS, limit=6)
    membership = actions.change_membership(
        actor=cast.alice, membership=Membership.objects.get(user=cast.bob), tickets=50
    )
    token, secret = create_token(actor=cast.bob, name="nightly", scopes=Scope.values, days=30)
    team_secret = create_secret(
        actor=cast.alice, tenant=cast.astro, name="supernova-key", values={"value": "SUPERNOVA's own"}
    )
    volume = Volume.objects.create(
        cluster=made.cluster, tenant=cast.astro, name="supernova-sky", source="/srv/sky", read_only=False
    )
    request = ask(
        actor=cast.alice, tenant=cast.astro, kind="tickets", reason="supernova", wanted={"tickets": 200}
    )
    schedule = yearly(made)
    service = create_service(
        actor=cast.bob,
        tenant=cast.astro,
        cluster=made.cluster,
        spec=JobSpec(name="supernova-api", command="serve", port=8000, readiness_path="/health"),
        replicas=2,
    )
    return Scene(
        made,
        job,
        waiting,
        other,
        trade,
        quota,
        membership,
        token,
        secret,
        team_secret,
        volume,
        request,
        schedule,
        service,
    )


def yearly(made: World) -> Schedule:
    """Creates Bob's schedule with one skipped run."""
    cast = made.people
    schedule = create_schedule(
        actor=cast.bob,
        tenant=cast.astro,
        cluster=made.cluster,
        spec=JobSpec(name="supernova-yearly", command="true"),
        terms=Terms(expression="0 0 1 1 *", time_zone="Europe/Berlin"),
    )
    ScheduleRun.objects.create(
        schedule=schedule,
        due_from=LONG_AGO,
        due_at=LONG_AGO,
        outcome=ScheduleRun.Outcome.SKIPPED,
        text="A job of Astro had not ended.",
    )
    return schedule


def share(
    of: Round, tenant: Tenant, generation: Generation, *, ends: datetime, **amounts: float
) -> ShareInterval:
    """Creates a share interval of the hour before `ends`.

    `amounts`: GPU-seconds by the field of ShareInterval, such as `received`. The other amounts are 0.
    """
    rest = dict.fromkeys(("entitled", "received", "lent", "unused", "borrowed", "bought", "sold"), 0.0)
    return ShareInterval.objects.update_or_create(
        round=of,
        tenant=tenant,
        generation=generation,
        defaults={"cluster": of.cluster, "begins": ends - timedelta(hours=1), "ends": ends} | rest | amounts,
    )[0]


def book(job: Job, user: User, generation: Generation, *, gpus: int, minutes: float, lease: int) -> None:
    """Books `minutes` minutes of the job's usage, which ended five minutes ago."""
    ends = now_from_database() - timedelta(minutes=5)
    with transaction.atomic():
        book_usage(
            [Usage(
                book=job.cluster_id, lease_id=lease, job_id=job.pk, job_name=job.name, tenant=job.tenant, user=user,
                generation=generation, gpus=gpus, begins=ends - timedelta(minutes=minutes), ends=ends,
                running_from=ends - timedelta(minutes=minutes),
            )]
        )  # fmt: skip
