"""Tests that admins can attach, check and detach clusters and replace kubeconfigs, against a real API server."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from accounting.core.errors import Refused
from accounting.models import AuditEvent
from scheduling.backends.kubernetes.rights import OPTIONAL, needed
from scheduling.clusters.attaching import (
    attach_cluster,
    check_cluster,
    detach_cluster,
    opened_kubeconfig,
    replace_kubeconfig,
)
from scheduling.models import Cluster, ClusterAccess
from scheduling.tasks import check_clusters
from tests import make
from tests.cluster.api import Api
from tests.cluster.component import free_port
from tests.cluster.controlplane import ControlPlane
from tests.cluster.credentials import ADMIN
from tests.cluster.deployed import FAIRLOT, flattened, manifests
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.django_db(transaction=True)]

MONTH = 30 * 24 * 3600


@pytest.fixture(scope="module", autouse=True)
def installed(fairlot: Path) -> None:
    """Installs deploy/kubernetes on the control plane."""


def kubeconfig(plane: ControlPlane, user: str = FAIRLOT, *, seconds: int = MONTH, **changed: Any) -> str:
    """Returns a kubeconfig in the form of `kubectl config view --raw --flatten`.

    `changed` replaces fields of its cluster or of its user.
    """
    found = yaml.safe_load(flattened(plane.kubeconfig(user, seconds=seconds)))
    cluster, person = found["clusters"][0]["cluster"], found["users"][0]["user"]
    for name, value in changed.items():
        (person if name == "token" else cluster)[name.replace("_", "-")] = value
    text: str = yaml.safe_dump(found)
    return text


@pytest.fixture
def ada(db: None) -> Any:
    return make.cast().ada


@pytest.fixture
def cluster(plane: ControlPlane, ada: Any) -> Cluster:
    return attach_cluster(actor=ada, name="east", kubeconfig=kubeconfig(plane))


def attached() -> list[str]:
    return list(Cluster.objects.attached().values_list("name", flat=True))


def test_a_good_kubeconfig_attaches_a_cluster_with_all_rights_and_none_beyond(
    plane: ControlPlane, cluster: Cluster, ada: Any
) -> None:
    access = cluster.access
    assert (access.server, access.user) == (plane.server, FAIRLOT)
    assert access.version.startswith("v1.")
    assert (access.trouble, access.beyond) == ("", [])
    assert access.rights == {right.key: True for right in needed(in_teams=False)}
    assert access.checked_at is not None
    event = AuditEvent.objects.get(verb="cluster.attach")
    assert (event.actor, event.target_name) == (ada, "east")


def test_a_stored_kubeconfig_is_encrypted_and_never_shown(plane: ControlPlane, ada: Any) -> None:
    text = kubeconfig(plane)
    token = yaml.safe_load(text)["users"][0]["user"]["token"]
    cluster = attach_cluster(actor=ada, name="east", kubeconfig=text)
    check_cluster(actor=ada, cluster=cluster)
    access = ClusterAccess.objects.get()
    assert token.encode() not in bytes(access.sealed_kubeconfig)
    assert token not in str(list(AuditEvent.objects.values()))
    opened = opened_kubeconfig(access)
    assert opened.content["users"][0]["user"]["token"] == token
    assert token not in repr(opened)


def test_rights_in_teams_namespaces_are_checked_once_there_is_one(
    cluster: Cluster, tenant: str, ada: Any
) -> None:
    access = check_cluster(actor=ada, cluster=cluster)
    assert access.rights == {right.key: True for right in needed(in_teams=True)}
    assert (access.trouble, access.beyond) == ("", [])


def test_missing_rights_are_named(plane: ControlPlane, ada: Any) -> None:
    access = attach_cluster(actor=ada, name="east", kubeconfig=kubeconfig(plane, "bob")).access
    assert access.user == "bob"
    assert not any(access.rights.values())
    assert access.trouble.startswith(
        "The credentials belong to bob, but Fairlot's policies in this cluster allow only"
    )
    assert access.trouble.endswith("Fairlot has no rights in this cluster. Apply deploy/kubernetes to it.")


def test_a_missing_right_is_reported_until_it_is_back(admin: Api, cluster: Cluster, ada: Any) -> None:
    role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/fairlot"
    rules = admin.get(role)["rules"]
    kept = [rule for rule in rules if "nodes" not in rule["resources"]]

    def trouble() -> str:
        return check_cluster(actor=None, cluster=cluster).trouble

    admin.merge(role, {"rules": kept})
    try:
        lacks = "Fairlot lacks rights in this cluster: get nodes, list nodes, watch nodes."
        said = f"{lacks} Apply deploy/kubernetes to it."
        wait_for(lambda: trouble() == said, what=trouble)
    finally:
        admin.merge(role, {"rules": rules})
    wait_for(lambda: trouble() == "", what=trouble)
    told = AuditEvent.objects.filter(verb="cluster.check").order_by("id")
    assert [event.after["trouble"] for event in told][-2:] == [said, None]


def test_a_right_that_is_not_needed_may_be_missing(
    admin: Api, cluster: Cluster, tenant: str, ada: Any
) -> None:
    role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/fairlot-tenant"
    rules = admin.get(role)["rules"]
    admin.merge(role, {"rules": [rule for rule in rules if "podgroups" not in rule["resources"]]})

    def rights() -> set[str]:
        """Returns the keys of those rights that the check of the cluster reports as missing."""
        return {key for key, there in check_cluster(actor=None, cluster=cluster).rights.items() if not there}

    try:
        wait_for(lambda: rights() == OPTIONAL, what=lambda: str(rights()))
        access = ClusterAccess.objects.get()
        assert (access.trouble, access.podgroups) == ("", "")
    finally:
        admin.merge(role, {"rules": rules})
    wait_for(lambda: not rights(), what=lambda: str(rights()))


def test_a_cluster_without_the_policies_is_reported(admin: Api, cluster: Cluster) -> None:
    """Proves that Fairlot reports a cluster without its admission policies.

    Without them, teams could create GPU pods themselves, and Fairlot's account could act in other namespaces.
    """
    policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"

    def trouble() -> str:
        return check_cluster(actor=None, cluster=cluster).trouble

    admin.delete(f"{policies}/fairlot-account")
    try:
        wait_for(lambda: "Fairlot's admission policies are not in force" in trouble(), what=trouble)
    finally:
        for document in manifests():
            admin.apply_one(document)
    wait_for(lambda: trouble() == "", what=trouble)
    names = [one["metadata"]["name"] for one in admin.items("/api/v1/namespaces")]
    assert not [name for name in names if "probe-" in name and name.startswith("fairlot")]


@pytest.mark.parametrize("version", [None, "1"])
def test_policies_of_an_older_release_are_reported(admin: Api, cluster: Cluster, version: str | None) -> None:
    """Proves that Fairlot reports policies with an older version label or, as in the first releases, without one."""
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/fairlot-gpus"
    now = admin.get(path)["metadata"]["labels"]["app.kubernetes.io/version"]

    def say(version: str | None) -> str:
        admin.merge(path, {"metadata": {"labels": {"app.kubernetes.io/version": version}}})
        return check_cluster(actor=None, cluster=cluster).trouble

    assert "are older than this release of Fairlot (fairlot-gpus): apply all files" in say(version)
    assert say(str(int(now) + 1)) == "", "a later Fairlot's are as good"
    assert say(now) == ""


def test_a_policy_that_only_warns_is_not_in_force(admin: Api, cluster: Cluster) -> None:
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/fairlot-work"

    def act(how: str) -> str:
        admin.merge(path, {"spec": {"validationActions": [how]}})
        return check_cluster(actor=None, cluster=cluster).trouble

    try:
        assert "are not in force in this cluster (fairlot-work). Apply all files" in act("Warn")
    finally:
        assert act("Deny") == ""


def test_an_account_with_all_rights_is_reported_as_having_too_many(plane: ControlPlane, ada: Any) -> None:
    access = attach_cluster(actor=ada, name="east", kubeconfig=kubeconfig(plane, ADMIN)).access
    assert access.beyond == ["do everything"]
    assert all(access.rights.values())
    assert f"allow only {FAIRLOT}. Use a token" in access.trouble


def test_single_excessive_rights_are_named(plane: ControlPlane, admin: Api, ada: Any) -> None:
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    rules = [
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"]},
    ]
    admin.create(f"{rbac}/clusterroles", {"metadata": {"name": "careless"}, "rules": rules})
    binding = {
        "metadata": {"name": "careless"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "careless"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "charlie"}],
    }
    admin.create(f"{rbac}/clusterrolebindings", binding)
    try:
        cluster = attach_cluster(actor=ada, name="east", kubeconfig=kubeconfig(plane, "charlie"))
        wait_for(
            lambda: (
                check_cluster(actor=ada, cluster=cluster).beyond
                == ["read every secret of the cluster", "act as any user"]
            ),
            what=lambda: str(ClusterAccess.objects.get().beyond),
        )
    finally:
        admin.delete(f"{rbac}/clusterrolebindings/careless")
        admin.delete(f"{rbac}/clusterroles/careless")


def test_a_wrong_token_is_refused(plane: ControlPlane, ada: Any) -> None:
    with pytest.raises(Refused, match="does not accept the token") as refused:
        attach_cluster(actor=ada, name="east", kubeconfig=kubeconfig(plane, token="wrong"))
    assert refused.value.field == "kubeconfig"
    assert attached() == []


def test_another_authority_is_refused(plane: ControlPlane, ada: Any) -> None:
    other = base64.b64encode(
        (plane.folder / "kube-scheduler-certificates" / "kube-scheduler.crt").read_bytes()
    )
    text = kubeconfig(plane, certificate_authority_data=other.decode())
    with pytest.raises(Refused, match="not signed by the kubeconfig"):
        attach_cluster(actor=ada, name="east", kubeconfig=text)


def test_a_name_that_the_certificate_does_not_have_is_refused(plane: ControlPlane, ada: Any) -> None:
    text = kubeconfig(plane, tls_server_name="elsewhere.example")
    with pytest.raises(Refused, match="does not match the host name"):
        attach_cluster(actor=ada, name="east", kubeconfig=text)


def test_an_address_where_nothing_listens_is_reported(plane: ControlPlane, ada: Any) -> None:
    text = kubeconfig(plane, server=f"https://127.0.0.1:{free_port()}")
    with pytest.raises(Refused, match="nothing listens"):
        attach_cluster(actor=ada, name="east", kubeconfig=text)
    assert not Cluster.objects.filter(name="east").exists()


def test_a_token_that_expires_soon_is_reported(plane: ControlPlane, cluster: Cluster, ada: Any) -> None:
    access = replace_kubeconfig(actor=ada, cluster=cluster, kubeconfig=kubeconfig(plane, seconds=3600))
    assert "Replace the kubeconfig before" in access.trouble
    assert replace_kubeconfig(actor=ada, cluster=cluster, kubeconfig=kubeconfig(plane)).trouble == ""
    assert AuditEvent.objects.filter(verb="cluster.replace_kubeconfig").count() == 2


def test_a_revoked_account_is_reported_until_the_kubeconfig_is_replaced(
    plane: ControlPlane, admin: Api, ada: Any
) -> None:
    """Proves that Fairlot reports a revoked account, with only one audit event although the check runs every few
    minutes."""
    admin.create("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "leaving"}})
    user = "system:serviceaccount:default:leaving"
    cluster = attach_cluster(actor=ada, name="east", kubeconfig=kubeconfig(plane, user))
    admin.delete("/api/v1/namespaces/default/serviceaccounts/leaving")

    def trouble() -> str:
        check_clusters()
        return ClusterAccess.objects.get().trouble

    wait_for(lambda: "does not accept the token" in trouble(), what=trouble)
    trouble()
    assert AuditEvent.objects.filter(verb="cluster.check", actor=None).count() == 1
    assert replace_kubeconfig(actor=ada, cluster=cluster, kubeconfig=kubeconfig(plane)).trouble == ""
    assert ClusterAccess.objects.get().user == FAIRLOT


def test_a_cluster_is_attached_once(plane: ControlPlane, cluster: Cluster, ada: Any) -> None:
    with pytest.raises(Refused, match="already attached as east") as refused:
        attach_cluster(actor=ada, name="west", kubeconfig=kubeconfig(plane))
    assert refused.value.field == "kubeconfig"
    with pytest.raises(Refused, match="A cluster named east already exists"):
        attach_cluster(actor=ada, name="east", kubeconfig=kubeconfig(plane))
    assert attached() == ["east"]


def test_a_kubeconfig_of_another_cluster_is_refused_as_a_replacement(
    plane: ControlPlane, cluster: Cluster, ada: Any
) -> None:
    ClusterAccess.objects.update(identity="another")
    with pytest.raises(Refused, match="a cluster that is not east"):
        replace_kubeconfig(actor=ada, cluster=cluster, kubeconfig=kubeconfig(plane))
    assert "now leads to another cluster" in check_cluster(actor=ada, cluster=cluster).trouble


def test_a_detached_cluster_is_recognised_when_it_is_attached_again(
    plane: ControlPlane, cluster: Cluster, ada: Any
) -> None:
    detach_cluster(actor=ada, cluster=cluster)
    assert attached() == []
    assert not ClusterAccess.objects.exists()
    check_clusters()  # there is nothing to check
    again = attach_cluster(actor=ada, name="east", kubeconfig=kubeconfig(plane))
    assert (again.pk, again.uid, attached()) == (cluster.pk, cluster.uid, ["east"])
    verbs = AuditEvent.objects.order_by("id").values_list("verb", flat=True)
    assert list(verbs) == ["cluster.attach", "cluster.detach", "cluster.attach_again"]
