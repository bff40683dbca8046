"""The topics under which changes are published, and the check of whether a user may subscribe to a topic."""

from __future__ import annotations

import re
from collections.abc import Iterable

from accounting.models import Tenant, User
from accounting.models.tenants import ids_with_role
from scheduling.models import Cluster, Job

TOPIC = re.compile(r"(?P<kind>jobs?|cluster|bell):(?P<key>\d{1,18}|\*)", re.ASCII)
MOST_TOPICS = 200


def may_hear(user: User, topics: Iterable[str]) -> bool:
    """Returns whether the user may subscribe to all of these topics.

    Each topic must be valid and must name a job, team or cluster that `user` may see. Only operators may use a
    wildcard, such as "jobs:*".
    """
    wanted: dict[str, set[int]] = {"job": set(), "jobs": set(), "cluster": set(), "bell": set()}
    for topic in topics:
        match = TOPIC.fullmatch(topic)
        if match is None:
            return False
        if match["key"] == "*":
            if not user.is_operator or match["kind"] == "bell":
                return False
            continue
        wanted[match["kind"]].add(int(match["key"]))
    wanted["jobs"].difference_update(
        ids_with_role(user)
    )  # teams with a role of the user need no further query
    if not wanted.pop("bell") <= {user.pk}:  # of nobody else
        return False
    seen = {
        "job": Job.objects.visible_to(user),
        "jobs": Tenant.objects.visible_to(user),
        "cluster": Cluster.objects.all(),  # all users may see all clusters; pages hide the names of other teams' jobs
    }
    return all(seen[kind].filter(pk__in=keys).count() == len(keys) for kind, keys in wanted.items() if keys)


def topics_of_jobs(user: User) -> str:
    """Returns the topics of all job lists that `user` may see, separated by spaces, for the HTML attribute
    `data-live`."""
    if user.is_operator:
        return "jobs:*"
    return " ".join(f"jobs:{pk}" for pk in ids_with_role(user)[:MOST_TOPICS])
