"""Tests that Fairlot creates a team's namespace once, repairs changes to it, and never takes over another's
namespace."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from scheduling.backends import network_sources
from scheduling.backends.kubernetes import namespaces
from scheduling.backends.kubernetes.api import Api as OwnApi
from scheduling.backends.kubernetes.api import Refused
from scheduling.backends.kubernetes.namespaces import NamespaceIsolation, Unusable
from tests.cluster.api import JOBS, Api, Object
from tests.cluster.conftest import remove
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

ISOLATION = NamespaceIsolation(gpus={"nvidia.com/gpu": 64}, pods=500)
NETWORK = "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies/fairlot"
SESSIONS = "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies/fairlot-sessions"
QUOTA = "/api/v1/namespaces/{}/resourcequotas/fairlot"
ACCOUNT = "/api/v1/namespaces/{}/serviceaccounts/fairlot-job"
BINDING = "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings/fairlot"
PLACES = ("/api/v1/namespaces/{}", NETWORK, SESSIONS, QUOTA, ACCOUNT, BINDING)


class Ours:
    """The namespace that Fairlot manages for one team."""

    def __init__(self, api: OwnApi, admin: Api) -> None:
        self.api, self.admin = api, admin
        self.tenant = secrets.randbelow(10**9)
        self.name = namespaces.name_of(self.tenant)
        self.path = f"/api/v1/namespaces/{self.name}"

    def ensure(
        self, isolation: NamespaceIsolation = ISOLATION, *, cluster: str = "one", prefix: str = "fairlot"
    ) -> str:
        return namespaces.ensure(self.api, self.tenant, isolation, cluster=cluster, prefix=prefix)

    def there(self) -> list[Object]:
        """Returns the namespace and its objects as they currently exist."""
        return [self.admin.get(place.format(self.name)) for place in PLACES]

    def versions(self) -> list[str]:
        return [
            thing["metadata"]["resourceVersion"] for thing in self.there() if thing["kind"] != "ResourceQuota"
        ]

    def hard(self) -> dict[str, str]:
        found: dict[str, str] = self.admin.get(QUOTA.format(self.name))["spec"]["hard"]
        return found

    def create(self, **labels: str) -> None:
        self.admin.create("/api/v1/namespaces", {"metadata": {"name": self.name, "labels": labels}})


@pytest.fixture
def ours(own: OwnApi, admin: Api) -> Iterator[Ours]:
    made = Ours(own, admin)
    yield made
    found = {thing["metadata"]["name"] for thing in admin.items("/api/v1/namespaces")}
    if made.name in found:
        remove(admin, made.name)


def test_it_is_isolated_from_the_start(ours: Ours) -> None:
    assert ours.ensure() == ours.name == f"fairlot-{ours.tenant}"
    namespace, network, sessions, quota, account, binding = ours.there()
    labels = namespace["metadata"]["labels"]
    assert labels["fairlot.io/tenant"] == str(ours.tenant)
    assert {labels[f"pod-security.kubernetes.io/{level}"] for level in ("enforce", "warn", "audit")} == {
        "restricted"
    }
    assert quota["spec"]["hard"] == {"requests.nvidia.com/gpu": "64", "pods": "500"}
    assert account["automountServiceAccountToken"] is False
    assert binding["roleRef"]["name"] == "fairlot-tenant"
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "fairlot", "namespace": "fairlot"}]
    # The policy selects all pods in both directions, and allows only connections to each other and to DNS.
    spec = network["spec"]
    assert (spec["podSelector"], spec["policyTypes"]) == ({}, ["Ingress", "Egress"])
    assert spec["ingress"] == [{"from": [{"podSelector": {}}]}]
    beside, names = spec["egress"]
    assert beside == {"to": [{"podSelector": {}}]}
    assert {port["port"] for port in names["ports"]} == {53}
    # The portal's addresses are not set, so even sessions accept no connections.
    assert not sessions["spec"].get("ingress")


def test_the_portal_reaches_the_ports_of_sessions_and_nothing_else(ours: Ours) -> None:
    places = network_sources.read(["fairlot/app.kubernetes.io/name=fairlot-web", "10.20.0.7", "fd00:20::/64"])
    ours.ensure(replace(ISOLATION, portal=places))
    before = ours.versions()
    spec = ours.admin.get(SESSIONS.format(ours.name))["spec"]
    assert spec == {
        "podSelector": {"matchLabels": {"fairlot.io/session": "true"}},
        "policyTypes": ["Ingress"],
        "ingress": [
            {
                "from": [
                    {
                        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "fairlot"}},
                        "podSelector": {"matchLabels": {"app.kubernetes.io/name": "fairlot-web"}},
                    },
                    {"ipBlock": {"cidr": "10.20.0.7/32"}},
                    {"ipBlock": {"cidr": "fd00:20::/64"}},
                ],
                "ports": [{"protocol": "TCP", "port": "main"}],
            }
        ],
    }
    # All other pods stay closed to the portal.
    assert ours.admin.get(NETWORK.format(ours.name))["spec"]["ingress"] == [{"from": [{"podSelector": {}}]}]
    ours.ensure(replace(ISOLATION, portal=places))
    assert ours.versions() == before
    ours.ensure()
    assert not ours.admin.get(SESSIONS.format(ours.name))["spec"].get("ingress")


def test_asking_again_changes_nothing(ours: Ours) -> None:
    ours.ensure()
    before = ours.versions()
    ours.ensure()
    assert ours.versions() == before


def test_several_processes_can_create_it_at_once(ours: Ours) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: ours.ensure(), range(8))) == {ours.name}
    assert ours.hard()["pods"] == "500"


def test_limits_and_network_changes_in_fairlot_reach_the_namespace(ours: Ours) -> None:
    ours.ensure()
    ours.ensure(
        NamespaceIsolation(
            gpus={"nvidia.com/mig-1g.5gb": 7, "nvidia.com/gpu": 8},
            pods=20,
            reachable=["10.1.0.0/16", "0.0.0.0/0", "::/0"],
        )
    )
    assert ours.hard() == {
        "requests.nvidia.com/gpu": "8",
        "requests.nvidia.com/mig-1g.5gb": "7",
        "pods": "20",
    }
    *_, outside = ours.admin.get(NETWORK.format(ours.name))["spec"]["egress"]
    assert outside == {
        "to": [
            {"ipBlock": {"cidr": "10.1.0.0/16"}},
            # Addresses at which clouds give credentials to machines stay closed.
            {"ipBlock": {"cidr": "0.0.0.0/0", "except": network_sources.hidden_in("0.0.0.0/0")}},
            {"ipBlock": {"cidr": "::/0", "except": network_sources.hidden_in("::/0")}},
        ]
    }
    ours.ensure()
    assert "requests.nvidia.com/mig-1g.5gb" not in ours.hard()
    assert len(ours.admin.get(NETWORK.format(ours.name))["spec"]["egress"]) == 2


def test_weakened_isolation_is_repaired_and_additions_stay(ours: Ours) -> None:
    ours.ensure()
    labels = {"pod-security.kubernetes.io/warn": "privileged", "site": "berlin"}
    ours.admin.merge(ours.path, {"metadata": {"labels": labels}})
    ours.admin.merge(QUOTA.format(ours.name), {"spec": {"hard": {"pods": "9999", "cpu": "500"}}})
    ours.admin.delete(NETWORK.format(ours.name))
    ours.admin.delete(BINDING.format(ours.name))
    ours.admin.merge(ACCOUNT.format(ours.name), {"automountServiceAccountToken": True})
    ours.ensure()
    namespace, _, _, quota, account, _ = ours.there()
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/warn"] == "restricted"
    assert namespace["metadata"]["labels"]["site"] == "berlin"
    assert quota["spec"]["hard"]["pods"] == "500"
    assert quota["spec"]["hard"]["cpu"] == "500"
    assert account["automountServiceAccountToken"] is False


def test_a_foreign_namespace_of_that_name_is_left_alone(ours: Ours) -> None:
    ours.create(site="berlin")
    with pytest.raises(
        Unusable, match=f"namespace {ours.name} exists, but Fairlot did not create it: it has no label"
    ):
        ours.ensure()
    there = ours.admin.get(ours.path)["metadata"]["labels"]
    assert set(there) == {"site", "kubernetes.io/metadata.name"}


def test_a_namespace_of_another_tenant_is_left_alone(ours: Ours) -> None:
    ours.create(**{"fairlot.io/tenant": "another"})
    with pytest.raises(Unusable, match="belongs to the team another"):
        ours.ensure()


def test_two_fairlots_in_one_cluster_do_not_share_a_namespace(ours: Ours) -> None:
    ours.ensure(cluster="one")
    with pytest.raises(Unusable, match="another Fairlot") as refused:
        ours.ensure(cluster="two")
    # The message suggests a command, which works.
    assert f"kubectl label namespace {ours.name} fairlot.io/cluster-" in str(refused.value)
    ours.admin.patch(ours.path, [{"op": "remove", "path": "/metadata/labels/fairlot.io~1cluster"}])
    ours.ensure(cluster="two")
    assert ours.admin.get(ours.path)["metadata"]["labels"]["fairlot.io/cluster"] == "two"


def test_a_namespace_that_is_being_deleted_is_waited_for(ours: Ours) -> None:
    ours.ensure()
    ours.admin.create(
        f"/api/v1/namespaces/{ours.name}/configmaps",
        {"metadata": {"name": "kept", "finalizers": ["example.org/kept"]}},
    )
    ours.admin.delete(ours.path)
    with pytest.raises(Unusable, match="is being deleted"):
        ours.ensure()
    ours.admin.merge(f"/api/v1/namespaces/{ours.name}/configmaps/kept", {"metadata": {"finalizers": None}})
    wait_for(lambda: is_usable(ours), what="it is there anew")


def is_usable(ours: Ours) -> bool:
    try:
        return bool(ours.ensure())
    except Unusable:
        return False


def test_a_binding_that_was_given_to_someone_else_is_reported(ours: Ours) -> None:
    ours.ensure()
    path = BINDING.format(ours.name)
    ours.admin.merge(
        path, {"subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": "default"}]}
    )
    with pytest.raises(Unusable, match=r"Someone else changed the RoleBinding fairlot"):
        ours.ensure()


def may_read_jobs(api: OwnApi, namespace: str) -> bool:
    try:
        api.get(f"{JOBS.format(namespace)}/none")
    except Refused as refused:
        return refused.code == 404
    raise AssertionError("there is no such Job")


def test_without_its_role_the_error_says_what_to_apply(
    ours: Ours, admin: Api, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(namespaces, "RIGHTS_SECONDS", 0.0)
    path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/fairlot-tenant"
    role = admin.get(path)
    admin.delete(path)
    try:
        wait_for(lambda: not may_read_jobs(ours.api, tenant), what="its rights are gone")
        with pytest.raises(Unusable, match="Apply deploy/kubernetes again"):
            ours.ensure()
    finally:
        del role["metadata"]["resourceVersion"], role["metadata"]["uid"], role["metadata"]["managedFields"]
        admin.apply_one(role)
    wait_for(lambda: is_usable(ours), what="its rights are back")
