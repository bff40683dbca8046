"""`manage.py load_demo`: creates users, teams, prices, virtual GPUs of two generations, and a few jobs.

Each step first checks what exists already, so that a second run completes an interrupted one.
"""

from __future__ import annotations

import os
from decimal import Decimal
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from accounting.actions import (
    add_member,
    create_generation,
    create_tenant,
    create_user,
    reset_password,
    set_price,
    set_quota,
)
from accounting.models import Generation, Membership, Quota, Tenant, User
from scheduling.clusters.actions import create_cluster, declare_node, update_cluster
from scheduling.clusters.discovery import declare_local_gpus
from scheduling.clusters.isolation import why_refused
from scheduling.jobs.submitting import submit_job
from scheduling.models import Cluster, Job, JobTemplate, Node
from scheduling.spec.job_spec import JobSpec
from scheduling.templates.actions import publish_template

CLUSTER = "demo"
# Generation, description, price of a GPU-hour, node name, GPUs, and the speed that programs simulate there.
HARDWARE = (
    ("V100", "The older half of the demo's simulated GPUs", 16, "1.20", "v100-0", 4, 1.0),
    (
        "A100",
        "The newer half of the demo's simulated GPUs, up to three times as fast as the older half",
        80,
        "3.00",
        "a100-0",
        4,
        3.0,
    ),
)
TEAMS = (("Astro", 100), ("Bio", 200), ("Vision", 400))
# User, portal role, team, role in the team.
PEOPLE = (
    ("ada", User.PortalRole.ADMIN, None, None),
    ("olga", User.PortalRole.OPERATOR, None, None),
    ("alice", User.PortalRole.USER, "Astro", Membership.Role.MANAGER),
    ("bob", User.PortalRole.USER, "Astro", Membership.Role.MEMBER),
    ("charlie", User.PortalRole.USER, "Bio", Membership.Role.MANAGER),
    ("dana", User.PortalRole.USER, "Vision", Membership.Role.MANAGER),
)
TRAIN = (
    'python "$FAIRLOT_EXAMPLES/digits/train.py" --steps {steps} --seconds-per-step 0.2 --sensitivity {gain}'
)
CHECKPOINT = "digits.npz"
# Owner, team, name, steps, speed-up on a faster GPU, workers. Together the jobs want more GPUs than exist, for an hour
# or longer; two of them end within a few minutes, so that the demo shows finished jobs.
JOBS = (
    ("bob", "Astro", "digits: first look", 300, "0.2", 1),
    ("bob", "Astro", "digits: baseline", 24_000, "0.2", 1),
    ("bob", "Astro", "digits: data-parallel", 24_000, "0.2", 2),
    ("charlie", "Bio", "digits: large batch", 36_000, "0.6", 1),
    ("charlie", "Bio", "digits: small batch", 36_000, "0.6", 1),
    ("dana", "Vision", "digits: quick check", 600, "1.0", 1),
    ("dana", "Vision", "digits: sweep 1", 60_000, "1.0", 1),
    ("dana", "Vision", "digits: sweep 2", 60_000, "1.0", 1),
    ("dana", "Vision", "digits: sweep 3", 60_000, "1.0", 1),
    ("dana", "Vision", "digits: sweep 4", 60_000, "1.0", 1),
)


# Name, description, specification and parameters of the templates for all teams. They need only the example program.
TEMPLATES: tuple[tuple[str, str, dict[str, Any], list[dict[str, Any]]], ...] = (
    (
        "Digits: train and resume",
        "Trains a small network to read handwritten digits. It prints its progress, saves checkpoints, and continues"
        " from the newest one after a pause. Good for a first job.",
        {
            "name": "digits: {steps} steps",
            "command": 'python "$FAIRLOT_EXAMPLES/digits/train.py" --steps {steps} --batch {batch}'
            " --seconds-per-step 0.1",
            "workers": "{workers}",
            "generations": ["{gpu_type}"],
            "checkpoint_grace_seconds": 10,
            "expected_hours": 0.05,
        },
        [
            {
                "name": "steps", "type": "number", "description": "How long to train", "whole": True, "min": 300,
                "max": 100_000, "default": 1200,
            },
            {
                "name": "batch", "type": "choice", "description": "Images in each step",
                "choices": ["32", "64", "128"], "default": "64",
            },
            {
                "name": "workers", "type": "number", "description": "Workers that share each step, with one GPU each",
                "whole": True, "min": 1, "max": 4, "default": 1,
            },
            {
                "name": "gpu_type", "type": "generation", "description": "Empty accepts every type",
                "required": False,
            },
        ],
    ),
    (
        "Digits: until an accuracy is reached",
        "Trains the same network, and fails if it does not reach the accuracy that you ask for. Good to see how a"
        " failed job looks.",
        {
            "name": "digits: accuracy {accuracy}",
            "command": 'python "$FAIRLOT_EXAMPLES/digits/train.py" --steps 600 --target-accuracy {accuracy}',
            "checkpoint_grace_seconds": 10,
            "expected_hours": 0.02,
        },
        [
            {
                "name": "accuracy", "type": "number", "description": "Part of the test images that it must read",
                "min": 0.5, "max": 1, "default": 0.95,
            }
        ],
    ),
)  # fmt: skip


class Command(BaseCommand):
    help = "Loads the demo data into an empty Fairlot."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--passwords-file",
            type=Path,
            required=True,
            help="File to which the passwords of the demo's users are written (mode 0600).",
        )
        parser.add_argument("--without-jobs", action="store_true")

    def handle(self, *args: Any, passwords_file: Path, without_jobs: bool, **options: Any) -> None:
        if Cluster.objects.exclude(name=CLUSTER).exists():
            raise CommandError("This Fairlot already has data. Load the demo into an empty Fairlot.")
        university = _tenant("University", None, 100)
        teams = {name: _tenant(name, university, tickets) for name, tickets in TEAMS}
        if not Quota.objects.exists():
            set_quota(actor=None, tenant=teams["Astro"], kind=Quota.Kind.GPUS, limit=6)
            set_quota(actor=None, tenant=university, kind=Quota.Kind.GPU_HOURS, limit=5000)
        passwords = {name: _person(name, role, teams.get(team or ""), at) for name, role, team, at in PEOPLE}
        _write(passwords_file, passwords)
        cluster = _cluster()
        for name, about, data, parameters in TEMPLATES:
            if not JobTemplate.objects.filter(name=name, tenant=None).exists():
                publish_template(
                    actor=None, tenant=None, name=name, description=about, spec=data, parameters=parameters
                )
        actors = {user.username: user for user in User.objects.all()}
        refused = [why for owner, *_ in JOBS if (why := why_refused(cluster, actors[owner]))]
        if refused:
            self.stdout.write(f"The demo was loaded without jobs: {refused[0]}")
        elif not without_jobs and not Job.objects.exists():
            for owner, team, name, steps, gain, workers in JOBS:
                spec = JobSpec(
                    name=name,
                    command=TRAIN.format(steps=steps, gain=gain),
                    environment=next(iter(settings.FAIRLOT_ENVIRONMENTS)),
                    workers=workers,
                    checkpoint=CHECKPOINT,
                    checkpoint_grace_seconds=10,
                )
                submit_job(actor=actors[owner], tenant=teams[team], cluster=cluster, spec=spec)
        self.stdout.write(
            f"The demo is loaded: {len(PEOPLE)} people, {len(TEAMS)} teams, cluster {cluster.name}."
        )


def _tenant(name: str, parent: Tenant | None, tickets: int) -> Tenant:
    found = Tenant.objects.filter(name=name).first()
    return found or create_tenant(actor=None, name=name, parent=parent, tickets=tickets)


def _person(name: str, portal_role: str, team: Tenant | None, role: str | None) -> str:
    """Creates the user, or sets a new password if the user exists, and adds the role in the team. Returns the
    password."""
    user = User.objects.filter(username=name).first()
    if user is None:
        made = create_user(actor=None, username=name, portal_role=portal_role, first_name=name.capitalize())
    else:
        made = reset_password(actor=None, user=user)
    if team and role and not Membership.objects.filter(user=made.user, tenant=team).exists():
        add_member(actor=None, tenant=team, user=made.user, role=role)
    return made.password


def _write(path: Path, passwords: dict[str, str]) -> None:
    width = max(map(len, passwords))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.writelines(f"{name:<{width}}  {password}\n" for name, password in passwords.items())


def _cluster() -> Cluster:
    cluster = Cluster.objects.filter(name=CLUSTER).first()
    is_new = cluster is None
    if cluster is None:
        cluster = create_cluster(actor=None, name=CLUSTER)
        # Time slices are short enough to watch, so a demo may lose more time to switching than a real cluster.
        cluster = update_cluster(actor=None, cluster=cluster, quantum_seconds=15, overhead_limit=0.1)
    # On a machine with GPUs the demo shows these; on others it declares virtual GPUs.
    if declare_local_gpus(actor=None, cluster=cluster):
        return cluster
    if is_new:  # declared GPUs have no memory that frozen jobs would keep
        cluster = update_cluster(actor=None, cluster=cluster, slicing=Cluster.Slicing.AUTO)
    for name, about, memory, price, node, gpus, speed in HARDWARE:
        generation = Generation.objects.filter(name=name).first()
        if generation is None:
            generation = create_generation(actor=None, name=name, description=about, memory_gib=memory)
        if not generation.prices.exists():
            set_price(actor=None, generation=generation, per_gpu_hour=Decimal(price))
        if not Node.objects.filter(cluster=cluster, name=node).exists():
            declare_node(
                actor=None, cluster=cluster, name=node, generation=generation, gpus=gpus, virtual_speed=speed
            )
    return cluster
