"""The REST API of the portal, version 1."""

from __future__ import annotations

from ninja.openapi.docs import Swagger

from portal.api.announcements.endpoints import router as announcements
from portal.api.anomalies.endpoints import router as anomalies
from portal.api.audit.endpoints import router as audit
from portal.api.auth import Bearer, Session
from portal.api.budgets.endpoints import router as budgets
from portal.api.clusters.endpoints import router as clusters
from portal.api.clusters.gpu_map import router as cluster
from portal.api.clusters.holders import router as holders
from portal.api.code.endpoints import router as code
from portal.api.conversions.endpoints import router as conversions
from portal.api.departures.endpoints import router as departures
from portal.api.document import DocumentedAPI
from portal.api.drafts.endpoints import router as drafts
from portal.api.fairness.endpoints import router as fairness
from portal.api.files.endpoints import router as files
from portal.api.idle.endpoints import router as idle
from portal.api.jobs.endpoints import router as jobs
from portal.api.limits.endpoints import router as limits
from portal.api.lists.endpoints import router as lists
from portal.api.login.endpoints import router as login
from portal.api.logs.endpoints import router as logs
from portal.api.metrics.endpoints import router as metrics
from portal.api.notifications.endpoints import router as notifications
from portal.api.old_names import answer_at_old_paths
from portal.api.operations.endpoints import router as operations
from portal.api.parsing import CheckedParser
from portal.api.pipelines.endpoints import router as pipelines
from portal.api.prices.endpoints import router as prices
from portal.api.problems import answer_with_problems
from portal.api.reports.endpoints import router as reports
from portal.api.requests.endpoints import router as requests
from portal.api.reservations.endpoints import router as advance_reservations
from portal.api.schedules.endpoints import router as schedules
from portal.api.secrets.endpoints import router as secrets
from portal.api.services.endpoints import router as services
from portal.api.sessions.endpoints import router as sessions
from portal.api.shares.endpoints import router as shares
from portal.api.subscriptions.endpoints import router as subscriptions
from portal.api.sweeps.endpoints import router as sweeps
from portal.api.teams.endpoints import router as teams
from portal.api.templates.endpoints import router as templates
from portal.api.terminals.endpoints import router as terminals
from portal.api.trade_limits.endpoints import router as trade_limits
from portal.api.volumes.endpoints import router as volumes
from portal.models import Scope

DESCRIPTION = """
Send one of your tokens as `Authorization: Bearer fairlot_…`, or use this page while you are signed in.

A token may read what you may see. What it may change is its scopes: `work`, `team`, `cluster`.

Errors are `application/problem+json` with `type`, `title`, `status` and `detail`. If fields are wrong, `problems` lists
them. Requests for an object that you may not see are answered with 404. Times are in UTC, and GPU time is in
GPU-seconds.

Deprecated names still work, but the next version removes them. The description of each deprecated name says what to
use instead.

[Back to the portal](/) · [Your tokens](/account/tokens/)
"""

api = DocumentedAPI(
    title="Fairlot",
    version="1",
    description=DESCRIPTION,
    parser=CheckedParser(),
    # Two hundred operations are folded by tag, and filtered by address and summary (static/js/api-docs.js).
    docs=Swagger(settings={"docExpansion": "none", "filter": True, "deepLinking": True}),
)
# The scope that a token needs for the calls of a router that change data.
ROUTERS = {
    Scope.WORK: (
        login,
        jobs,
        logs,
        files,
        metrics,
        conversions,
        code,
        services,
        sessions,
        terminals,
        schedules,
        sweeps,
        pipelines,
        drafts,
        templates,
        shares,
        notifications,
        fairness,
        reports,
        secrets,
        lists,
    ),
    Scope.TEAM: (
        teams,
        limits,
        budgets,
        requests,
        departures,
        idle,
        trade_limits,
        anomalies,
        subscriptions,
        audit,
    ),
    Scope.CLUSTER: (
        cluster,
        holders,
        clusters,
        volumes,
        operations,
        advance_reservations,
        prices,
        announcements,
    ),
}
for scope, routers in ROUTERS.items():
    for router in routers:
        answer_at_old_paths(router)
        api.add_router("", router, auth=[Bearer(scope), Session()])
answer_with_problems(api)
