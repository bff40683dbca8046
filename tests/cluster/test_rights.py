"""Tests that Fairlot can make all its requests, and no others, with exactly the rights of deploy/kubernetes."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from tests.cluster.api import JOBS, NODES, PODS, Api, Object, Refused
from tests.cluster.controlplane import ControlPlane
from tests.cluster.deployed import FAIRLOT, manifests
from tests.cluster.jobs import Work, on_nodes, suspended
from tests.cluster.tenancy import EPOCH, GATE, JOB, container, epoch, fairlots_job, fairlots_pod, pod
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

Grant = tuple[str, str, str, str]  # (verb, group, resource, name of the only object or "" for all)
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
NAMESPACES = "/api/v1/namespaces"
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings"
SELF = {"kind": "ServiceAccount", "name": "fairlot", "namespace": "fairlot"}
SERVICES, MAPS, SECRETS = ("/api/v1/namespaces/{}/" + kind for kind in ("services", "configmaps", "secrets"))


@pytest.fixture
def account(plane: ControlPlane, fairlot: object) -> Api:
    return plane.api(FAIRLOT)


# --- exact rights ----------------------------------------------------------------------------------------


def grants(rules: Iterable[Object]) -> set[Grant]:
    return {
        (verb, group, resource, name)
        for rule in rules
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames") or [""]
    }


def role(name: str) -> set[Grant]:
    [found] = (
        made for made in manifests() if (made["kind"], made["metadata"]["name"]) == ("ClusterRole", name)
    )
    return grants(found["rules"])


def told(account: Api, namespace: str) -> set[Grant]:
    """Returns the account's rights in the namespace, as the API server reports them."""
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview"}
    answer = account.create(REVIEWS, {**review, "spec": {"namespace": namespace}})
    assert not answer["status"]["incomplete"]
    return grants(answer["status"]["resourceRules"])


def anybody(admin: Api) -> set[Grant]:
    """Returns the rights that every authenticated user has: to ask the API server about the user's own identity and
    rights."""
    found = admin.get("/apis/rbac.authorization.k8s.io/v1/clusterroles/system:basic-user")
    return grants(found["rules"])


def test_its_rights_are_those_of_the_manifests_and_no_others(account: Api, admin: Api, tenant: str) -> None:
    everywhere = role("fairlot") | anybody(admin)
    for elsewhere in ("default", "kube-system", "fairlot"):
        assert told(account, elsewhere) == everywhere
    assert told(account, tenant) == everywhere | role("fairlot-tenant")


# --- what it does ----------------------------------------------------------------------------------------


class Gang:
    """A gang whose requests, from the first to the last, all use Fairlot's account."""

    def __init__(self, account: Api, namespace: str, *, pods: int) -> None:
        self.work = Work(account, namespace)
        self.made = account.create(self.work.jobs, fairlots_job("fairlot-gang", pods=pods))

    def start(self, at: int, *nodes: str) -> None:
        place = {"op": "add", "path": "/spec/template/spec/affinity", "value": on_nodes(*nodes)}
        self.work.change("fairlot-gang", [epoch(at + 1), place, suspended(False)])

    def pods(self) -> list[Object]:
        """Returns the gang's pods by a list request for the whole cluster, as the watch process makes it."""
        return self.work.api.items("/api/v1/pods", labelSelector=f"{JOB}=1")

    def wait_for_pods(self, count: int, phase: str) -> list[Object]:
        def found() -> list[Object]:
            pods = [made for made in self.pods() if made["status"].get("phase") == phase]
            return pods if len(pods) == count else []

        return wait_for(found, what=f"{count} pods are {phase}")

    def ungate(self, made: Object, node: str) -> None:
        gate = {"op": "test", "path": "/spec/schedulingGates/0/name", "value": GATE}
        selector = {"op": "add", "path": "/spec/nodeSelector", "value": {"kubernetes.io/hostname": node}}
        remove = {"op": "remove", "path": "/spec/schedulingGates/0"}
        self.work.api.patch(self.work.pod(made), [gate, selector, remove])


def test_a_gang_runs_stops_moves_and_is_deleted(account: Api, tenant: str, nodes: list[str]) -> None:
    gang = Gang(account, tenant, pods=2)
    for at, where in ((0, nodes[:2]), (2, nodes[2:4])):
        gang.start(at, *where)
        for made, node in zip(gang.wait_for_pods(2, "Pending"), where, strict=True):
            gang.ungate(made, node)
        assert {made["spec"]["nodeName"] for made in gang.wait_for_pods(2, "Running")} == set(where)
        gang.work.change("fairlot-gang", [epoch(at + 2), suspended(True)])
        wait_for(lambda: not gang.pods(), what="its pods are gone")
    path = f"{gang.work.jobs}/fairlot-gang"
    account.delete(path, preconditions={"uid": gang.made["metadata"]["uid"]}, propagationPolicy="Background")
    wait_for(lambda: not account.items("/apis/batch/v1/jobs", labelSelector=JOB), what="it is gone")


def test_a_gang_completes_and_one_that_fails_is_counted(
    account: Api, admin: Api, tenant: str, nodes: list[str]
) -> None:
    """Proves that the policies let the Job controller and the kubelets make all changes to pods that they must make.

    One gang completes and one fails.
    """
    for name, code, end in (("fairlot-good", "0", "Complete"), ("fairlot-bad", "3", "Failed")):
        account.create(JOBS.format(tenant), fairlots_job(name))
        work = Work(account, tenant)
        work.change(name, [epoch(1), suspended(False)])
        [made] = Work(admin, tenant).wait_for_pods(name, 1, "Running")
        marks = {"test.fairlot/run-for": "0.2", "test.fairlot/exit-code": code}
        admin.merge(work.pod(made), {"metadata": {"annotations": marks}})
        work.wait_for_condition(name, end)


def test_a_burst_runs_as_pods_without_a_job(account: Api, tenant: str, nodes: list[str]) -> None:
    made = fairlots_pod("fairlot-burst-0", schedulingGates=[{"name": GATE}])
    created = account.create(PODS.format(tenant), made)
    path = f"{PODS.format(tenant)}/fairlot-burst-0"
    account.patch(path, [{"op": "remove", "path": "/spec/schedulingGates/0"}])
    wait_for(lambda: account.get(path)["status"]["phase"] == "Running", what="it runs")
    account.delete(path, preconditions={"uid": created["metadata"]["uid"]})
    wait_for(lambda: not account.items("/api/v1/pods", labelSelector=f"{JOB}=1"), what="it is gone")


def test_it_reads_what_the_pages_show(account: Api, tenant: str, nodes: list[str]) -> None:
    assert {node["metadata"]["name"] for node in account.items(NODES)} >= set(nodes)
    assert account.get(f"{NODES}/{nodes[0]}")["metadata"]["name"] == nodes[0]
    account.items("/api/v1/events")
    account.items(f"/api/v1/namespaces/{tenant}/persistentvolumeclaims")
    for path in (NODES, "/api/v1/pods", "/apis/batch/v1/jobs", "/api/v1/events"):
        assert not [event for event in account.watch(path, seconds=1) if event["type"] == "ERROR"]
    made = account.create(PODS.format(tenant), fairlots_pod("fairlot-talks-0"))
    path = f"{PODS.format(tenant)}/fairlot-talks-0"
    wait_for(lambda: account.get(path)["status"].get("phase") == "Running", what="it runs")
    # The node is simulated and has no log, so the request fails, but it is allowed.
    with pytest.raises(Refused) as refused:
        account.get(f"{path}/log")
    assert refused.value.code not in (401, 403), refused.value
    account.delete(path, preconditions={"uid": made["metadata"]["uid"]})


def test_it_may_write_the_other_objects_of_a_job(account: Api, tenant: str) -> None:
    metadata = {"name": "fairlot-gang", "labels": {JOB: "1"}}
    services, maps, hidden = (path.format(tenant) for path in (SERVICES, MAPS, SECRETS))
    account.create(services, {"metadata": metadata, "spec": {"clusterIP": "None", "selector": {JOB: "1"}}})
    assert account.get(f"{services}/fairlot-gang")["spec"]["clusterIP"] == "None"
    account.delete(f"{services}/fairlot-gang")
    account.create(maps, {"metadata": metadata, "data": {"hostfile": "gang-0 slots=8"}})
    assert account.get(f"{maps}/fairlot-gang")["data"]["hostfile"] == "gang-0 slots=8"
    account.delete(f"{maps}/fairlot-gang")
    # The garbage collector deletes objects whose owner is missing, so the Job must exist.
    uid = account.create(JOBS.format(tenant), fairlots_job("fairlot-gang"))["metadata"]["uid"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "fairlot-gang", "uid": uid}
    about = {"name": "fairlot-gang-variables", "labels": {JOB: "1"}, "ownerReferences": [owner]}
    for attempt, text in (("1", "first"), ("2", "second")):
        secret = {"metadata": {**about, "annotations": {EPOCH: attempt}}, "stringData": {"key": text}}
        if attempt == "1":
            account.create(hidden, secret)
        else:
            account.replace(f"{hidden}/fairlot-gang-variables", secret)


def test_it_has_its_own_share_of_the_api_server(account: Api, admin: Api) -> None:
    answer = account.http.get(NODES, params={"limit": 1})
    for header, path in (("FlowSchema", "flowschemas"), ("PriorityLevel", "prioritylevelconfigurations")):
        made = admin.get(f"/apis/flowcontrol.apiserver.k8s.io/v1/{path}/fairlot")
        assert answer.headers[f"X-Kubernetes-PF-{header}-UID"] == made["metadata"]["uid"]


# --- what it cannot do -----------------------------------------------------------------------------------

ANY_SECRET = {"metadata": {"name": "some"}}
ANY_ROLE = {"metadata": {"name": "some"}, "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]}
BIND_ADMIN = {
    "metadata": {"name": "admin"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
    "subjects": [SELF],
}
RBAC = "/apis/rbac.authorization.k8s.io/v1"
CERTIFICATES = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
TOKEN = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
POLICY = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/fairlot-gpus"
LABELS = {"metadata": {"labels": {"some": "label"}}}
# By description: method, path (where "{}" is a tenant's namespace) and content of a request.
FORBIDDEN: dict[str, tuple[str, str, Object | None]] = {
    "read secrets elsewhere": ("GET", "/api/v1/namespaces/kube-system/secrets", None),
    "list the secrets of a tenant": ("GET", SECRETS, None),
    "read a secret of a tenant": ("GET", SECRETS + "/some", None),
    "delete a secret of a tenant": ("DELETE", SECRETS + "/some", None),
    "make a secret elsewhere": ("POST", "/api/v1/namespaces/default/secrets", ANY_SECRET),
    "make a pod elsewhere": ("POST", PODS.format("default"), pod("p")),
    "make a Job elsewhere": ("POST", JOBS.format("default"), fairlots_job("j")),
    "delete a Job elsewhere": ("DELETE", f"{JOBS.format('default')}/some", None),
    "read a pod elsewhere, one by one": ("GET", f"{PODS.format('kube-system')}/some", None),
    "make somebody admin of the cluster": ("POST", f"{RBAC}/clusterrolebindings", BIND_ADMIN),
    "make itself admin of a tenant": ("POST", BINDINGS, BIND_ADMIN),
    "write a role": ("POST", f"{RBAC}/clusterroles", ANY_ROLE),
    "write a role of a tenant": ("POST", f"{RBAC}/namespaces/{{}}/roles", ANY_ROLE),
    "change its own role": ("PATCH", f"{RBAC}/clusterroles/fairlot-tenant", LABELS),
    "change whom its binding names": ("PATCH", BINDINGS + "/fairlot", {"subjects": []}),
    "run a command in a pod": ("POST", PODS + "/some/exec?command=id", None),
    "attach to a pod": ("POST", PODS + "/some/attach", None),
    "forward a port of a pod": ("POST", PODS + "/some/portforward", None),
    "put a container into a pod": ("PATCH", PODS + "/some/ephemeralcontainers", LABELS),
    "bind a pod": ("POST", PODS + "/some/binding", {"target": {"name": "some"}}),
    "say how a pod fares": ("PATCH", PODS + "/some/status", LABELS),
    "say how a Job fares": ("PATCH", JOBS + "/some/status", LABELS),
    "change a node": ("PATCH", f"{NODES}/some", LABELS),
    "reach a node's kubelet": ("GET", f"{NODES}/some/proxy/pods", None),
    "delete a namespace": ("DELETE", f"{NAMESPACES}/{{}}", None),
    "delete all Jobs of a tenant at once": ("DELETE", JOBS, None),
    "lift a tenant's quota by deleting it": ("DELETE", "/api/v1/namespaces/{}/resourcequotas/fairlot", None),
    "open a tenant's network by deleting its policy": (
        "DELETE",
        "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies/fairlot",
        None,
    ),
    "change a policy": ("PATCH", POLICY, LABELS),
    "get a token for another account": (
        "POST",
        "/api/v1/namespaces/kube-system/serviceaccounts/job-controller/token",
        TOKEN,
    ),
    "get a token for itself": ("POST", "/api/v1/namespaces/fairlot/serviceaccounts/fairlot/token", TOKEN),
    "sign a certificate": ("GET", CERTIFICATES, None),
    "make a webhook": (
        "POST",
        "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
        {"metadata": {"name": "some"}},
    ),
}


def asked(api: Api, method: str, path: str, content: Object | None, **headers: str) -> Object:
    if method == "PATCH":
        headers["Content-Type"] = "application/merge-patch+json"
    answer = api.http.request(method, path, json=content, headers=headers)
    api._raise_refusal(answer)
    parsed: Object = answer.json()
    return parsed


@pytest.mark.parametrize("what", FORBIDDEN)
def test_rbac_does_not_let_it(account: Api, tenant: str, what: str) -> None:
    method, path, content = FORBIDDEN[what]
    with pytest.raises(Refused) as refused:
        asked(account, method, path.format(tenant), content)
    assert refused.value.code == 403, refused.value
    assert (
        f'User "{FAIRLOT}" cannot' in refused.value.message or "not currently held" in refused.value.message
    )


@pytest.mark.parametrize("header", ["User", "Group"])
def test_it_cannot_act_as_another_user(account: Api, header: str) -> None:
    who = {"Impersonate-User": "test-admin"} | (
        {"Impersonate-Group": "system:masters"} if header == "Group" else {}
    )
    with pytest.raises(Refused, match="cannot impersonate"):
        asked(account, "GET", NODES, None, **who)


# --- what policies decide because RBAC cannot ------------------------------------------------------------

OURS = {"fairlot.io/tenant": "8", "pod-security.kubernetes.io/enforce": "restricted"}
BIND_ROLE = {**BIND_ADMIN, "metadata": {"name": "fairlot"}}
BIND_ROLE["roleRef"] = {**BIND_ADMIN["roleRef"], "name": "fairlot-tenant"}


def denied(call: Any, words: str) -> None:
    with pytest.raises(Refused, match=words) as refused:
        call()
    assert refused.value.code == 403
    assert "ValidatingAdmissionPolicy 'fairlot-account'" in refused.value.message


def test_it_does_not_take_over_a_namespace(account: Api, admin: Api, namespace: str) -> None:
    for name in (namespace, "kube-system", "default"):
        path = f"{NAMESPACES}/{name}"
        denied(lambda path=path: account.merge(path, {"metadata": {"labels": OURS}}), "from the start")
        denied(lambda path=path: account.merge(path, LABELS), "namespaces of its tenants")
        assert "fairlot.io/tenant" not in admin.get(path)["metadata"]["labels"]


def test_it_does_not_take_its_role_in_a_namespace_that_is_not_a_tenants(account: Api, namespace: str) -> None:
    for name in (namespace, "kube-system", "fairlot"):
        denied(
            lambda name=name: account.create(BINDINGS.format(name), BIND_ROLE), "namespaces of its tenants"
        )


def test_it_may_create_only_namespaces_of_tenants(account: Api) -> None:
    def create(**labels: str) -> None:
        name = f"fairlot-{secrets.token_hex(4)}-8"
        account.create(f"{NAMESPACES}?dryRun=All", {"metadata": {"name": name, "labels": labels}})

    create(**OURS)
    denied(create, "namespaces of its tenants")
    denied(lambda: create(**{"fairlot.io/tenant": "8"}), "must enforce the pod security standard restricted")
    denied(
        lambda: create(**{**OURS, "pod-security.kubernetes.io/enforce": "baseline"}),
        "must enforce the pod security standard restricted",
    )


def test_it_cannot_weaken_or_give_away_a_namespace_of_its_own(account: Api, tenant: str) -> None:
    def change(label: str, value: str | None) -> None:
        account.merge(f"{NAMESPACES}/{tenant}", {"metadata": {"labels": {label: value}}})

    denied(lambda: change("pod-security.kubernetes.io/enforce", "privileged"), "standard restricted")
    denied(lambda: change("pod-security.kubernetes.io/enforce", None), "standard restricted")
    denied(lambda: change("fairlot.io/tenant", "9"), "stays with the tenant")
    denied(lambda: change("fairlot.io/tenant", None), "namespaces of its tenants")
    denied(lambda: change("site", "berlin"), "changes no others")
    change("pod-security.kubernetes.io/warn", "restricted")


def test_even_its_own_pods_are_confined(account: Api, tenant: str) -> None:
    """Proves that even pods of Fairlot's account are confined, so that a stolen token does not give access to the
    node."""
    made = fairlots_pod("fairlot-p-0", container(gpus=1, securityContext={"privileged": True}))
    with pytest.raises(Refused, match=r"violates PodSecurity \"restricted.*privileged"):
        account.create(PODS.format(tenant), made)
    driver = fairlots_pod("fairlot-p-0", volumes=[{"name": "v", "csi": {"driver": "example.org"}}])
    with pytest.raises(Refused, match=r"fairlot-confined|fairlot-work"):
        account.create(PODS.format(tenant), driver)
    for refusing in (pod("p", container(gpus=1)), pod("p", nodeName="some")):
        with pytest.raises(Refused, match=r"fairlot-gpus|fairlot-placement|fairlot-work"):
            account.create(PODS.format(tenant), refusing)


@pytest.fixture
def second(account: Api, admin: Api) -> Iterator[str]:
    """Creates a second namespace with Fairlot's account, and yields its name. An attacker with Fairlot's token could do
    this, too."""
    name = f"fairlot-{secrets.token_hex(4)}-8"
    account.create(NAMESPACES, {"metadata": {"name": name, "labels": OURS}})
    yield name
    admin.delete(f"{NAMESPACES}/{name}")


def test_in_a_new_namespace_it_may_take_its_role_and_no_other(account: Api, second: str) -> None:
    with pytest.raises(Refused, match="not currently held"):
        account.create(BINDINGS.format(second), BIND_ADMIN)
    edit = {**BIND_ADMIN, "roleRef": {**BIND_ADMIN["roleRef"], "name": "edit"}}
    with pytest.raises(Refused, match="not currently held"):
        account.create(BINDINGS.format(second), edit)
    account.create(BINDINGS.format(second), BIND_ROLE)
