"""Gangs that Kubernetes' own scheduler knows as such: PodGroups of scheduling.k8s.io, where a cluster offers them.

It binds all pods of a group or none of them (KEP-4671), once they are through Fairlot's own gate: a second safety
net, and no more. Nothing needs it; whatever is amiss with PodGroups, gangs run without them.
"""

from __future__ import annotations

import time

from scheduling.backends.kubernetes.api import Api, Missing, Object, Refused, Taken

GROUP = "scheduling.k8s.io"
# Versions whose PodGroups are known here, the newest first: of Kubernetes 1.37 and of 1.36.
KNOWN = ("v1beta1", "v1alpha2")
PODGROUPS = "/apis/scheduling.k8s.io/{}/namespaces/{}/podgroups"
# Until an API server is asked again, which may have been updated, or given another configuration or right.
KEPT_SECONDS = 600.0
# What the scheduler says of a pod that it could bind, while others of its gang are not there or cannot be bound.
WAITS = "waiting for minCount pods from a gang"


class PodGroups:
    """What one API server offers: asked for now and then, and remembered for all who give orders there."""

    def __init__(self, *, kept_seconds: float = KEPT_SECONDS) -> None:
        self._kept_seconds = kept_seconds
        self._known: tuple[str, float] | None = None  # and until when
        self._refused_until = 0.0

    def version(self, api: Api) -> str:
        """As `offered`; empty where a PodGroup was refused lately."""
        return "" if time.monotonic() < self._refused_until else self._offered(api)

    def ensure(self, api: Api, namespace: str, job: Object) -> bool:
        """The PodGroup that the Job's pods name is there, and the Job's own; False when it cannot be had.

        Twice is as good as once. True also for a Job whose pods name none.
        """
        name = named_by(job)
        if not name:
            return True
        # One that was made before is as good as ever, though no other may be made now.
        version = self._offered(api)
        if not version:
            return False
        try:
            there = _made(api, PODGROUPS.format(version, namespace), version, job)
        except Refused as refusal:
            if may_pass(refusal):
                raise
            # No right, no such resource, or not what is taken for a PodGroup there.
            self._refused_until = time.monotonic() + self._kept_seconds
            return False
        about = there["metadata"]
        owners = {owner["uid"] for owner in about.get("ownerReferences", ())}
        return job["metadata"]["uid"] in owners and "deletionTimestamp" not in about

    def _offered(self, api: Api) -> str:
        known = self._known
        if known is None or time.monotonic() >= known[1]:
            self._known = known = (offered(api), time.monotonic() + self._kept_seconds)
        return known[0]


def offered(api: Api) -> str:
    """The version of PodGroups that the API server has and Fairlot knows; empty when there is none."""
    try:
        there = {one["version"] for one in api.get(f"/apis/{GROUP}").get("versions", ())}
        for version in KNOWN:
            if version in there and _has_podgroups(api, version):
                return version
    except Refused as refusal:  # who may not even ask does without
        if may_pass(refusal):
            raise
    return ""


def _has_podgroups(api: Api, version: str) -> bool:
    resources = api.get(f"/apis/{GROUP}/{version}").get("resources", ())
    return any(one["name"] == "podgroups" and "create" in one["verbs"] for one in resources)


def may_pass(refusal: Refused) -> bool:
    """Whether the same request may go well later: it says nothing of PodGroups."""
    return refusal.code in (401, 429) or refusal.code >= 500


def name_of(job: str, epoch: int) -> str:
    """Of a Job's group; that of a Job made anew differs, for what the one before owned goes only after it."""
    return f"{job}-{epoch}"


def named_by(job: Object) -> str:
    """The group that a Job's pods are to be of; empty where there is none, or the API server knows of none."""
    return str(job["spec"]["template"]["spec"].get("schedulingGroup", {}).get("podGroupName", ""))


def of_pods(group: str) -> Object:
    """Of a pod's spec."""
    return {"schedulingGroup": {"podGroupName": group}}


def only_waits(message: str) -> bool:
    """Whether the scheduler says of a pod no more than that it waits for the others of its gang."""
    return WAITS in message


def _made(api: Api, path: str, version: str, job: Object) -> Object:
    """The Job's group, which is there afterwards."""
    one = f"{path}/{named_by(job)}"
    try:
        return api.get(one)
    except Missing:
        try:
            return api.create(path, _group(version, job))
        except Taken:  # by the same order, given twice at once
            return api.get(one)


def _group(version: str, job: Object) -> Object:
    """All of the gang's pods or none; it goes when its Job does."""
    about = job["metadata"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": about["name"], "uid": about["uid"]}
    return {
        "apiVersion": f"{GROUP}/{version}",
        "kind": "PodGroup",
        "metadata": {
            "name": named_by(job),
            "labels": about["labels"],
            "ownerReferences": [{**owner, "controller": True}],
        },
        "spec": {"schedulingPolicy": {"gang": {"minCount": job["spec"]["completions"]}}},
    }
