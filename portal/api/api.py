"""The REST API, version 1."""

from __future__ import annotations

from portal.api import (
    anomalies,
    budgets,
    cluster,
    clusters,
    departures,
    fairness,
    idle,
    jobs,
    limits,
    operations,
    reports,
    requests,
    schedules,
    secrets,
    services,
    sessions,
    subscriptions,
    teams,
    trade_limits,
    volumes,
)
from portal.api.auth import Bearer, Session
from portal.api.document import DocumentedAPI
from portal.api.parsing import CheckedParser
from portal.api.problems import answer_with_problems

DESCRIPTION = """
Send a token of yours as `Authorization: Bearer fairlot_…`, or use this page while you are signed in.

Errors are `application/problem+json` with `type`, `title`, `status`, `detail` and, where fields are at
fault, `problems`. What you may not see is 404. Times are in UTC, GPU time is in GPU-seconds.

[Back to the portal](/) · [Your tokens](/account/tokens/)
"""

api = DocumentedAPI(
    title="Fairlot", version="1", description=DESCRIPTION, auth=[Bearer(), Session()], parser=CheckedParser()
)
for subject in (
    jobs,
    services,
    sessions,
    schedules,
    cluster,
    reports,
    subscriptions,
    fairness,
    idle,
    operations,
    anomalies,
    trade_limits,
    clusters,
    teams,
    limits,
    budgets,
    requests,
    secrets,
    volumes,
    departures,
):
    api.add_router("", subject.router)
answer_with_problems(api)
