"""Short labels for the reasons why jobs wait, and the set of those reasons that depend on a limit."""

from __future__ import annotations

from collections.abc import Mapping

from fairshare.model import Reason

SHORT: Mapping[int, str] = {
    Reason.NONE: "next round",
    Reason.NEVER_NO_SUCH_GENERATION: "GPU type not in this cluster",
    Reason.NEVER_TOO_LARGE: "job larger than the cluster",
    Reason.NEVER_WORKER_TOO_LARGE: "no node is large enough",
    Reason.NEVER_OVER_QUOTA: "job larger than a limit allows",
    Reason.QUOTA_IN_USE: "limit reached",
    Reason.HOURS_SPENT: "limit for this period used up",
    Reason.SHARE_IN_USE: "other jobs go first",
    Reason.OWN_JOBS_AHEAD: "owner's other jobs go first",
    Reason.FRAGMENTED: "free GPUs are scattered",
    Reason.NODES_AWAY: "nodes unavailable",
    Reason.GPUS_DRAINING: "GPUs are being freed",
    Reason.CLUSTER_PAUSED: "cluster paused",
    Reason.BACKING_OFF: "start failed, retrying",
    Reason.RETRYING: "program failed, retrying",
    Reason.RESERVED: "GPUs reserved in advance",
    Reason.BORROWED_ENOUGH: "borrowing limit reached",
    Reason.PREEMPTIBLE: "no free GPUs for preemptible jobs",
    Reason.TEAM_ARCHIVED: "team archived",
    Reason.PLACE_LOST: "assigned GPUs became unavailable",
    Reason.OWNER_MAY_NOT: "owner may not run jobs in the team",
}


# Reasons that depend on a limit. An Explainer finds whose limit it is, and of which kind.
OF_LIMITS = frozenset({Reason.QUOTA_IN_USE, Reason.HOURS_SPENT, Reason.BORROWED_ENOUGH, Reason.PREEMPTIBLE})
