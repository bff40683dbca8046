"""Test setup for attacks on a cluster: a team's namespace with Fairlot's and the team's objects, and clients of
attackers."""

from __future__ import annotations

import copy
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import yaml

from scheduling.backends.base import SecretFolder, Secrets
from scheduling.backends.kubernetes import namespaces, objects, rendezvous, secret_objects
from scheduling.backends.kubernetes.api import Api as OwnApi
from tests.cluster import deployed
from tests.cluster.api import JOBS, PODS, Api, Object, Refused
from tests.cluster.controlplane import ControlPlane, control_plane
from tests.cluster.emptying import remove
from tests.cluster.tenancy import answer, container, own_job, pod
from tests.waiting import wait_for

PEOPLE = {"bob": ["astro"], "charlie": ["bio"]}
GENEROUS = """
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: bob-may-all, namespace: {namespace}}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}}
subjects: [{{apiGroup: rbac.authorization.k8s.io, kind: User, name: bob}}]
"""
ISOLATION = namespaces.NamespaceIsolation(gpus={"nvidia.com/gpu": 100}, pods=100)
OWNER = "tests"
# IDs of Fairlot's jobs: an existing Job, an existing bare pod, and a Job and a bare pod that could be created.
JOB, BARE, OTHER, BURST = 1, 2, 3, 4
GIVEN = Secrets({"HF_TOKEN": "hf_ofAJob"}, [SecretFolder("hf", "/secrets/hf", {"token": "hf_ofAJob"})], "{}")
HIS = "hunter2-of-the-tenant"
MAPS, SECRETS, SERVICES, CLAIMS, ACCOUNTS, QUOTAS, RANGES = (
    "/api/v1/namespaces/{}/" + kind
    for kind in (
        "configmaps",
        "secrets",
        "services",
        "persistentvolumeclaims",
        "serviceaccounts",
        "resourcequotas",
        "limitranges",
    )
)
NETWORK_POLICIES = "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies"
ROLES = "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles"
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings"
NAMESPACES = "/api/v1/namespaces"
# Words in the API server's answer that identify the source of a refusal.
RBAC = "cannot "


def policy(name: str) -> str:
    return f"ValidatingAdmissionPolicy '{name}'"


@dataclass(frozen=True)
class Try:
    """One request of an attacker. The content of a PATCH is a JSON Patch if it is a list, otherwise a JSON Merge
    Patch."""

    method: str
    path: str
    content: Any = None


@dataclass
class Stage:
    """Test setup for attacks.

    - `home`: the team's namespace. It contains a Secret, ConfigMaps, a pod and other objects of Bob, each named "his".
    - `elsewhere`: a namespace that has nothing to do with Fairlot.
    - `thief`: a client with a copy of Fairlot's token.
    - `bob`: a client with all rights in `home`.
    """

    plane: ControlPlane
    own: OwnApi
    home: str
    elsewhere: str

    @property
    def admin(self) -> Api:
        return self.plane.admin

    @property
    def thief(self) -> Api:
        return self.plane.api(deployed.FAIRLOT)

    @property
    def bob(self) -> Api:
        return self.plane.api("bob")

    def job(self, number: int = OTHER, *, given: Secrets = GIVEN, workers: int = 2) -> Object:
        """Returns a Job exactly as Fairlot would create it, with references to the Secrets in `given`."""
        made = objects.Pod(
            image="example/train", command=["train"], environment={"A": "b"}, gpus=1, secrets=given
        )
        return objects.new_job(number, made, workers=workers, owner=OWNER)

    def bare(self, number: int = BURST) -> Object:
        """Returns a pod without a Job, exactly as Fairlot would create it."""
        made = objects.Pod(image="example/train", command=["train"], environment={"A": "b"}, gpus=1)
        attempt = objects.Attempt(1, "lease", "A100", ["no-such-node"])
        return objects.new_pod(number, made, owner=OWNER, attempt=attempt)

    def fill(self) -> None:
        """Creates the objects of Bob and of Fairlot that attackers try to read or change."""
        api, home = self.admin, self.home
        api.apply(GENEROUS.format(namespace=home))
        wait_for(lambda: not answer(lambda: self.bob.items(JOBS.format(home))), what="Bob's rights")
        for path, thing in (
            (SECRETS, {"stringData": {"password": HIS}}),
            (MAPS, {"data": {"NVIDIA_VISIBLE_DEVICES": "all"}}),
            (ACCOUNTS, {}),
            (SERVICES, {"spec": {"selector": {"app": "his"}, "ports": [{"port": 80}]}}),
            (QUOTAS, {"spec": {"hard": {"secrets": "1000"}}}),
            (NETWORK_POLICIES, {"spec": {"podSelector": {"matchLabels": {"app": "none"}}}}),
            (ROLES, {"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]}),
            (JOBS, own_job("his", suspend=True)),
            (PODS, pod("his", container(image="example/his"), schedulerName="nobody")),
        ):
            name = "fairlot-tenant" if path == ROLES else "his"
            self.bob.create(path.format(home), thing | {"metadata": {"name": name}})
        made = self.own.create(JOBS.format(home), self.job(JOB))
        rendezvous.prepare(
            self.own,
            home,
            made,
            job_label=objects.JOB,
            slots=rendezvous.hosts(made["metadata"]["name"], workers=2, gpus=1),
        )
        secret_objects.write(self.own, home, made, GIVEN, annotations={objects.EPOCH: "1"})
        self.own.create(PODS.format(home), self.bare(BARE))


@contextmanager
def stage(plane: ControlPlane) -> Iterator[Stage]:
    """Yields a Stage on a control plane with deploy/kubernetes installed. The control plane must have the users in
    PEOPLE."""
    own = OwnApi(yaml.safe_load(plane.kubeconfig(deployed.FAIRLOT).read_text()))
    elsewhere = f"elsewhere-{secrets.token_hex(4)}"
    plane.admin.create(NAMESPACES, {"metadata": {"name": elsewhere}})
    home = namespaces.ensure(own, secrets.randbelow(10**9), ISOLATION, cluster="tests")
    try:
        made = Stage(plane, own, home, elsewhere)
        made.fill()
        yield made
    finally:
        own.close()
        remove(plane.admin, home)
        remove(plane.admin, elsewhere)


@contextmanager
def own_stage() -> Iterator[Stage]:
    """Yields a Stage on a new control plane, which is stopped when the block ends."""
    with control_plane("stage", users=PEOPLE) as plane:
        deployed.install(plane)
        with stage(plane) as made:
            yield made


def changed(thing: Object, path: str, value: Any) -> Object:
    """Returns a copy of an object with another value at a path such as "spec/containers/0/image". None removes the
    field."""
    made = copy.deepcopy(thing)
    *above, last = path.split("/")
    at: Any = made
    for step in above:
        at = at[int(step)] if isinstance(at, list) else at.setdefault(step, {})
    if value is None:
        del at[last]
    elif isinstance(at, list):
        at[int(last)] = value
    else:
        at[last] = value
    return made


def refusal_of(api: Api, one: Try) -> Refused | None:
    """Sends the request as a dry run. Returns the API server's refusal, or None if the server accepts the request."""
    content, kind = one.content, "application/json"
    if one.method == "DELETE":  # the options of a DELETE request are in its body
        content = (content or {}) | {"dryRun": ["All"]}
    if one.method == "PATCH":
        kind = f"application/{'json' if isinstance(content, list) else 'merge'}-patch+json"
    at, _, query = one.path.partition("?")
    answer = api.http.request(
        one.method,
        f"{at}?dryRun=All{'&' if query else ''}{query}",
        json=content,
        headers={"Content-Type": kind},
    )
    try:
        Api._raise_refusal(answer)
    except Refused as refused:
        return refused
    return None


def held(api: Api, tries: Mapping[str, Try], *by: str) -> None:
    """Asserts that each request is refused with status 403 and with a message that contains one of the words in `by`.

    The words say who refuses: the name of a policy, or RBAC's "cannot".
    """
    through: list[str] = []
    for what, one in tries.items():
        refusal = refusal_of(api, one)
        if refusal is None:
            through.append(f"let through: {what}")
        elif refusal.code != 403 or not any(word in refusal.message for word in by):
            through.append(f"refused, but not by {' or '.join(by)}: {what}: {refusal}")
    assert not through, "\n".join(through)


def passes(api: Api, tries: Mapping[str, Try]) -> None:
    """Asserts that no request is refused. The error lists the refused requests."""
    refused = {what: refusal for what, one in tries.items() if (refusal := refusal_of(api, one))}
    assert not refused, "\n".join(f"refused: {what}: {refusal}" for what, refusal in refused.items())
