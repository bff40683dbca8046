"""Fairlot detects whether an API server offers PodGroups (the gangs of the Kubernetes scheduler), and uses them. A
stand-in gives the server's answers."""

from __future__ import annotations

from typing import Any, cast

import pytest

from scheduling.backends.kubernetes.api import Api, Missing, Object, Refused
from scheduling.backends.kubernetes.podgroups import PodGroups, offered, only_waits

ROOT = "/apis/scheduling.k8s.io"
VERBS = ["create", "delete", "get", "list"]
JOB = {
    "metadata": {"name": "fairlot-aaaaaaab", "uid": "uid-1", "labels": {"fairlot.io/job": "1"}},
    "spec": {
        "completions": 4,
        "template": {"spec": {"schedulingGroup": {"podGroupName": "fairlot-aaaaaaab-0"}}},
    },
}


class Server:
    """An API server that has prepared answers for some paths and answers 404 for all others."""

    def __init__(self, **resources: list[str]) -> None:
        self.answers: dict[str, Object | Refused] = {
            ROOT: {"versions": [{"version": version} for version in resources]}
        }
        for version, names in resources.items():
            listed = [{"name": name, "namespaced": True, "verbs": VERBS} for name in names]
            self.answers[f"{ROOT}/{version}"] = {"resources": listed}
        self.asked: list[str] = []
        self.made: list[tuple[str, Object]] = []
        self.refusal: Refused | None = None

    def get(self, path: str, **query: Any) -> Object:
        self.asked.append(path)
        answer = self.answers.get(path, Missing(404, {}))
        if isinstance(answer, Refused):
            raise answer
        return answer

    def create(self, path: str, thing: Object) -> Object:
        if self.refusal:
            raise self.refusal
        self.made.append((path, thing))
        self.answers[f"{path}/{thing['metadata']['name']}"] = thing
        return thing

    @property
    def api(self) -> Api:
        return cast(Api, self)


@pytest.mark.parametrize(
    ("resources", "version"),
    [
        ({"v1": ["priorityclasses"]}, ""),
        ({"v1": ["priorityclasses"], "v1alpha2": ["podgroups", "podgroups/status", "workloads"]}, "v1alpha2"),
        ({"v1alpha2": ["podgroups"], "v1beta1": ["podgroups"], "v1alpha3": ["podgroups"]}, "v1beta1"),
        # The first has v1beta1 as in Kubernetes 1.21, without PodGroups; on the second the feature gate for PodGroups
        # is off.
        ({"v1": ["priorityclasses"], "v1beta1": ["priorityclasses"], "v1alpha2": ["podgroups"]}, "v1alpha2"),
        ({"v1alpha2": ["workloads"]}, ""),
        # The version of Kubernetes 1.35 and a future version; Fairlot knows the format of neither.
        ({"v1alpha1": ["workloads", "podgroups"], "v1": ["priorityclasses", "podgroups"]}, ""),
    ],
)
def test_the_newest_version_that_is_known_here_is_used_if_it_has_podgroups(
    resources: dict[str, list[str]], version: str
) -> None:
    assert offered(Server(**resources).api) == version


def test_a_forbidden_question_means_no_groups_and_a_missing_answer_is_asked_again() -> None:
    server = Server()
    server.answers[ROOT] = Refused(403, {"reason": "Forbidden"})
    assert offered(server.api) == ""
    for code in (401, 429, 500, 503):
        server.answers[ROOT] = Refused(code, {})
        with pytest.raises(Refused):
            offered(server.api)


def test_it_is_asked_for_once_in_a_while() -> None:
    server = Server(v1alpha2=["podgroups"])
    groups = PodGroups()
    assert {groups.version(server.api) for _ in range(5)} == {"v1alpha2"}
    assert server.asked == [ROOT, f"{ROOT}/v1alpha2"]
    forgetful = PodGroups(kept_seconds=0)
    assert forgetful.version(server.api) == "v1alpha2"
    server.answers[ROOT] = {"versions": [{"version": "v1"}]}
    assert forgetful.version(server.api) == ""


@pytest.mark.parametrize("version", ["v1beta1", "v1alpha2"])
def test_a_group_needs_all_of_the_gang_and_is_the_jobs(version: str) -> None:
    server = Server(**{version: ["podgroups"]})
    groups = PodGroups()
    assert groups.ensure(server.api, "fairlot-1", JOB)
    assert groups.ensure(server.api, "fairlot-1", JOB), "twice is as good as once"
    [(path, group)] = server.made
    assert path == f"{ROOT}/{version}/namespaces/fairlot-1/podgroups"
    assert (group["apiVersion"], group["kind"]) == (f"scheduling.k8s.io/{version}", "PodGroup")
    assert group["spec"] == {"schedulingPolicy": {"gang": {"minCount": 4}}}
    [owner] = group["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], group["metadata"]["name"]) == ("Job", "uid-1", "fairlot-aaaaaaab-0")


@pytest.mark.parametrize("code", [400, 403, 404, 422])
def test_an_api_server_that_refuses_groups_is_left_alone_with_them_for_a_while(code: int) -> None:
    server = Server(v1alpha2=["podgroups"])
    server.refusal = Refused(code, {}) if code != 404 else Missing(404, {})
    groups = PodGroups()
    assert not groups.ensure(server.api, "fairlot-1", JOB)
    assert groups.version(server.api) == ""
    assert PodGroups().version(server.api) == "v1alpha2"
    # A gang whose PodGroup exists already may still use it.
    one = f"{ROOT}/v1alpha2/namespaces/fairlot-2/podgroups/fairlot-aaaaaaab-0"
    server.answers[one] = {"metadata": {"ownerReferences": [{"kind": "Job", "uid": "uid-1"}]}}
    assert groups.ensure(server.api, "fairlot-2", JOB)


def test_one_that_cannot_do_it_now_is_asked_again() -> None:
    server = Server(v1alpha2=["podgroups"])
    groups = PodGroups()
    server.refusal = Refused(503, {})
    with pytest.raises(Refused):
        groups.ensure(server.api, "fairlot-1", JOB)
    server.refusal = None
    assert groups.ensure(server.api, "fairlot-1", JOB)


@pytest.mark.parametrize(
    "about",
    [
        {"ownerReferences": [{"kind": "Job", "uid": "uid-0"}]},
        {},
        {"ownerReferences": [{"kind": "Job", "uid": "uid-1"}], "deletionTimestamp": "2026-11-21T19:00:00Z"},
    ],
)
def test_a_group_of_that_name_that_is_anothers_or_about_to_go_is_not_relied_on(about: Object) -> None:
    server = Server(v1alpha2=["podgroups"])
    one = f"{ROOT}/v1alpha2/namespaces/fairlot-1/podgroups/fairlot-aaaaaaab-0"
    server.answers[one] = {"metadata": {"name": "fairlot-aaaaaaab-0", **about}}
    groups = PodGroups()
    assert not groups.ensure(server.api, "fairlot-1", JOB)
    assert groups.version(server.api) == "v1alpha2", "which says nothing of other gangs"


def test_nothing_is_asked_for_pods_that_name_no_group() -> None:
    server = Server(v1alpha2=["podgroups"])
    alone = {**JOB, "spec": {"completions": 4, "template": {"spec": {}}}}
    assert PodGroups().ensure(server.api, "fairlot-1", alone)
    assert (server.asked, server.made) == ([], [])


def test_a_pod_that_waits_for_others_is_distinguished_from_one_that_delays_them() -> None:
    """`only_waits` tells two kinds of pending pods apart by the message of Kubernetes 1.36's scheduler: a pod that only
    waits for the other pods of its gang, and a pod that itself does not fit."""
    assert only_waits(
        "pod group is unschedulable, waiting for minCount pods from a gang to be scheduled, "
        "one or more plugins asked to wait and no plugin rejected pod"
    )
    assert not only_waits("0/4 nodes are available: 1 Insufficient nvidia.com/gpu.")
