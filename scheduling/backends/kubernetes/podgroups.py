"""PodGroups (scheduling.k8s.io): gang scheduling by the Kubernetes scheduler, on clusters that offer it.

After Fairlot has opened the gates of a gang's pods, the scheduler binds all of the pods or none (KEP-4671). This is
only a second safeguard. If PodGroups do not work for any reason, gangs run without them.
"""

from __future__ import annotations

import time

from scheduling.backends.kubernetes.api import Api, Missing, Object, Refused, Taken

GROUP = "scheduling.k8s.io"
# API versions of PodGroups that Fairlot supports, the newest first: of Kubernetes 1.37 and of 1.36.
KNOWN = ("v1beta1", "v1alpha2")
PODGROUPS = "/apis/scheduling.k8s.io/{}/namespaces/{}/podgroups"
# Seconds until an API server is asked again, because its release, its configuration or its rights may change.
KEPT_SECONDS = 600.0
# The scheduler's message for a pod that it could bind while other pods of the gang are missing or cannot be bound.
WAITS = "waiting for minCount pods from a gang"


class PodGroups:
    """Finds out whether one API server offers PodGroups. Remembers the answer for a limited time and then asks again.

    All orders to one cluster share one instance.
    """

    def __init__(self, *, kept_seconds: float = KEPT_SECONDS) -> None:
        self._kept_seconds = kept_seconds
        # (offered version, monotonic time until which it is valid).
        self._known: tuple[str, float] | None = None
        self._refused_until = 0.0

    def version(self, api: Api) -> str:
        """Returns the API version to use for PodGroups; "" if PodGroups cannot be used.

        This is the newest version that both the API server and Fairlot support. After the API server has refused a
        PodGroup, the result is "" for a while.
        """
        return "" if time.monotonic() < self._refused_until else self._offered(api)

    def ensure(self, api: Api, namespace: str, job: Object) -> bool:
        """Creates the PodGroup to which the Job's pods refer, if it does not exist. Returns whether the pods can be
        scheduled; always True if they refer to no PodGroup.

        False means that the PodGroup cannot be read or created, belongs to another Job, or is being deleted. The pods
        could then wait forever.

        Raises Refused if the API server refuses a request but may accept it later.
        """
        name = named_by(job)
        if not name:
            return True
        # Ignores `_refused_until`, because a PodGroup that was created earlier stays valid.
        version = self._offered(api)
        if not version:
            return False
        try:
            there = _get_or_create(api, PODGROUPS.format(version, namespace), version, job)
        except Refused as refusal:
            if is_transient(refusal):
                raise
            # Fairlot lacks the right, the cluster lacks the resource, or the object is not valid there.
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
    """Returns the newest API version of PodGroups that both the API server and Fairlot support; "" if there is none."""
    try:
        there = {one["version"] for one in api.get(f"/apis/{GROUP}").get("versions", ())}
        for version in KNOWN:
            if version in there and _has_podgroups(api, version):
                return version
    except Refused as refusal:  # without the right to ask, gangs run without PodGroups
        if is_transient(refusal):
            raise
    return ""


def _has_podgroups(api: Api, version: str) -> bool:
    resources = api.get(f"/apis/{GROUP}/{version}").get("resources", ())
    return any(one["name"] == "podgroups" and "create" in one["verbs"] for one in resources)


def is_transient(refusal: Refused) -> bool:
    """Returns whether the refused request may succeed later, for example after an overload.

    A transient refusal does not show whether the cluster supports PodGroups.
    """
    return refusal.code in (401, 429) or refusal.code >= 500


def name_of(job: str, epoch: int) -> str:
    """Returns the name of the PodGroup of the Job named `job`. `epoch` is the epoch with which the Job was created.

    Without the epoch in the name, a new Job could use the PodGroup of a deleted Job of the same name.
    """
    return f"{job}-{epoch}"


def named_by(job: Object) -> str:
    """Returns the name of the PodGroup to which the Job's pods refer.

    Returns "" if they refer to none, or if the API server dropped the reference because it does not know PodGroups.
    """
    return str(job["spec"]["template"]["spec"].get("schedulingGroup", {}).get("podGroupName", ""))


def of_pods(group: str) -> Object:
    """Returns the field of a pod spec that refers to the PodGroup `group`."""
    return {"schedulingGroup": {"podGroupName": group}}


def only_waits(message: str) -> bool:
    """Returns whether the scheduler's message only says that a pod waits for other pods of its gang."""
    return WAITS in message


def _get_or_create(api: Api, path: str, version: str, job: Object) -> Object:
    """Returns the Job's PodGroup. Creates the PodGroup if it does not exist.

    `path` is the API path of the namespace's PodGroups, and `version` is their API version.
    """
    one = f"{path}/{named_by(job)}"
    try:
        return api.get(one)
    except Missing:
        try:
            return api.create(path, _group(version, job))
        except Taken:  # the same order, given twice, has just created it
            return api.get(one)


def _group(version: str, job: Object) -> Object:
    """Builds a PodGroup that makes the scheduler bind all of the gang's pods or none.

    Kubernetes deletes the PodGroup together with its Job.
    """
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
