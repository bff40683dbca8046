"""Attacks on a real Kubernetes API server, with a stolen token of Fairlot's service account or as a team's user.

These attacks do not use the portal: `target.cluster` is a separate control plane (tests/cluster/stage.py) on which
deploy/kubernetes is installed. tests/cluster/test_stolen_account.py runs the same attacks on the control plane that all
tests there share. Most attacks first show that the API server accepts the request without its malicious part.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from scheduling.backends.base import NO_SECRETS
from scheduling.backends.kubernetes import objects
from tests.attack.attacks import Target, attack
from tests.cluster.api import JOBS, NODES, PODS, Object
from tests.cluster.stage import (
    ACCOUNTS,
    BARE,
    BINDINGS,
    BURST,
    CLAIMS,
    JOB,
    MAPS,
    NAMESPACES,
    NETWORK_POLICIES,
    OTHER,
    QUOTAS,
    RANGES,
    RBAC,
    SECRETS,
    SERVICES,
    Stage,
    Try,
    changed,
    held,
    passes,
    policy,
    refusal_of,
)
from tests.cluster.tenancy import CONFINED, container, own_job, pod
from tests.waiting import wait_for

ACCOUNT, SERVICES_POLICY, WORK, DELETES, SECRETS_POLICY = (
    policy(name)
    for name in ("fairlot-account", "fairlot-services", "fairlot-work", "fairlot-deletes", "fairlot-secrets")
)
GPUS, PODS_POLICY = policy("fairlot-gpus"), policy("fairlot-pods")
STANDARD = "violates PodSecurity"
GONE = {"apiVersion": "v1", "kind": "Node", "name": "gone", "uid": "00000000-0000-4000-8000-000000000000"}
FAIRLOT = {"kind": "ServiceAccount", "name": "fairlot", "namespace": "fairlot"}
MALLORY = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "mallory"}


# --- a stolen account: objects that would outlive its token -----------------------------------------------------


def binding(
    *subjects: Object, role: str = "fairlot-tenant", kind: str = "ClusterRole", name: str = "fairlot"
) -> Object:
    return {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
        "subjects": list(subjects),
    }


@attack("a stolen account gives its role to somebody else", needs="cluster")
def binds_others(target: Target) -> None:
    stage = target.cluster
    stage.admin.delete(f"{BINDINGS.format(stage.home)}/fairlot")
    try:
        at = BINDINGS.format(stage.home)
        passes(stage.thief, {"its own": Try("POST", at, binding(FAIRLOT))})
        group = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group"}
        subjects: dict[str, list[Object]] = {
            "a user": [MALLORY],
            "everybody": [group | {"name": "system:unauthenticated"}],
            "all service accounts": [group | {"name": "system:serviceaccounts"}],
            "an account of another namespace": [FAIRLOT | {"namespace": stage.elsewhere}],
            "another account of its own namespace": [FAIRLOT | {"name": "default"}],
            "an account of the tenant": [{"kind": "ServiceAccount", "name": "his", "namespace": stage.home}],
            "itself and a user": [FAIRLOT, MALLORY],
            "a user who is called as it is": [MALLORY | {"name": "system:serviceaccount:fairlot:fairlot"}],
            "nobody yet": [],
        }
        tries = {f"to {who}": Try("POST", at, binding(*them)) for who, them in subjects.items()}
        tries["to a user, by another binding"] = Try("POST", at, binding(MALLORY, name="another"))
        tries["its own by another binding, to be changed later"] = Try(
            "POST", at, binding(FAIRLOT, name="another")
        )
        tries["its rights in the whole cluster"] = Try("POST", at, binding(MALLORY, role="fairlot"))
        tries["what everybody may"] = Try("POST", at, binding(MALLORY, role="system:basic-user"))
        generated = binding(MALLORY)
        generated["metadata"] = {"generateName": "fairlot"}
        tries["to a user, under a name that is made up"] = Try("POST", at, generated)
        held(stage.thief, tries, ACCOUNT)
    finally:
        stage.admin.create(at, binding(FAIRLOT))
    held(
        stage.thief,
        {
            "elsewhere": Try("POST", BINDINGS.format(stage.elsewhere), binding(MALLORY)),
            "elsewhere, itself": Try("POST", BINDINGS.format(stage.elsewhere), binding(FAIRLOT)),
            "a role of the namespace": Try("POST", at, binding(FAIRLOT, kind="Role")),
            "the binding that is there": Try("PATCH", f"{at}/fairlot", {"subjects": [MALLORY]}),
            "the same, as a whole": Try("PUT", f"{at}/fairlot", binding(MALLORY)),
        },
        ACCOUNT,
        RBAC,
        "not currently held",
    )


@attack("a stolen account makes a token that lasts", needs="cluster")
def makes_tokens(target: Target) -> None:
    stage = target.cluster
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = {"type": "kubernetes.io/service-account-token"}
    secret = secret_of(stage)
    passes(stage.thief, {"a secret of its Job": Try("POST", SECRETS.format(stage.home), secret)})
    tries: dict[str, Try] = {}
    for who in ("fairlot-job", "default", "his"):
        made = secret | token
        made["metadata"] = secret["metadata"] | {
            "annotations": secret["metadata"]["annotations"] | {"kubernetes.io/service-account.name": who}
        }
        tries[f"by a secret, of {who}"] = Try("POST", SECRETS.format(stage.home), made)
        tries[f"by a secret of that type alone, of {who}"] = Try(
            "POST",
            SECRETS.format(stage.home),
            {"metadata": {"name": "t", "annotations": {"kubernetes.io/service-account.name": who}}} | token,
        )
        tries[f"by asking for one, of {who}"] = Try(
            "POST", f"{ACCOUNTS.format(stage.home)}/{who}/token", request
        )
    tries["of itself"] = Try("POST", f"{ACCOUNTS.format('fairlot')}/fairlot/token", request)
    tries["of a controller"] = Try("POST", f"{ACCOUNTS.format('kube-system')}/job-controller/token", request)
    tries["by a secret of its own namespace"] = Try(
        "POST",
        SECRETS.format("fairlot"),
        {"metadata": {"name": "t", "annotations": {"kubernetes.io/service-account.name": "fairlot"}}} | token,
    )
    tries["by a certificate"] = Try(
        "POST",
        "/apis/certificates.k8s.io/v1/certificatesigningrequests",
        {
            "metadata": {"name": "t"},
            "spec": {
                "signerName": "kubernetes.io/kube-apiserver-client",
                "request": "",
                "usages": ["client auth"],
            },
        },
    )
    held(stage.thief, tries, SECRETS_POLICY, RBAC)


@attack("a stolen account changes what holds it back", needs="cluster")
def changes_rules(target: Target) -> None:
    stage = target.cluster
    policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    bindings = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    every = {"rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]}
    named = {"metadata": {"name": "some"}}
    cluster_admin = binding(FAIRLOT, role="cluster-admin", name="some")
    held(
        stage.thief,
        {
            "a policy": Try("PATCH", f"{policies}/fairlot-work", {"spec": {"validations": []}}),
            "a policy's binding": Try("DELETE", f"{bindings}/fairlot-account"),
            "what a binding does": Try(
                "PATCH", f"{bindings}/fairlot-gpus", {"spec": {"validationActions": ["Audit"]}}
            ),
            "its own role": Try("PATCH", f"{rbac}/clusterroles/fairlot", every),
            "its role in namespaces of tenants": Try("PATCH", f"{rbac}/clusterroles/fairlot-tenant", every),
            "a role of a namespace": Try("POST", f"{rbac}/namespaces/{stage.home}/roles", named | every),
            "a role of the cluster": Try("POST", f"{rbac}/clusterroles", named | every),
            "its binding": Try("PATCH", f"{rbac}/clusterrolebindings/fairlot", {"subjects": [MALLORY]}),
            "admin by a binding": Try("POST", f"{rbac}/clusterrolebindings", cluster_admin),
            "a webhook": Try(
                "POST", "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations", named
            ),
            "a mutating policy": Try(
                "POST", "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies", named
            ),
            "its own account": Try(
                "PATCH", f"{ACCOUNTS.format('fairlot')}/fairlot", {"secrets": [{"name": "t"}]}
            ),
            "a priority level": Try(
                "PATCH",
                "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas/fairlot",
                {"spec": {"matchingPrecedence": 1}},
            ),
            "a priority class": Try(
                "POST", "/apis/scheduling.k8s.io/v1/priorityclasses", named | {"value": 10**9}
            ),
            "a runtime class": Try(
                "POST", "/apis/node.k8s.io/v1/runtimeclasses", named | {"handler": "nvidia"}
            ),
        },
        RBAC,
    )


# --- a stolen account: namespaces --------------------------------------------------------------------------------


def namespace(
    name: str = "fairlot-77", tenant: str = "77", labels: dict[str, str | None] | None = None
) -> Object:
    own: dict[str, str | None] = {
        "app.kubernetes.io/managed-by": "fairlot",
        "fairlot.io/tenant": tenant,
        "fairlot.io/cluster": "tests",
        "pod-security.kubernetes.io/enforce": "restricted",
        "pod-security.kubernetes.io/enforce-version": "latest",
    }
    found = {key: value for key, value in (own | (labels or {})).items() if value is not None}
    return {"metadata": {"name": name, "labels": found}}


@attack("a stolen account lowers the security of a namespace", needs="cluster")
def lowers_security(target: Target) -> None:
    stage = target.cluster
    prefix = "pod-security.kubernetes.io/"
    passes(stage.thief, {"its own": Try("POST", NAMESPACES, namespace())})
    lowered: dict[str, str | None] = {
        "enforce": "privileged",
        "enforce-version": "v1.0",
        "audit": "privileged",
        "audit-version": "v1.0",
        "warn": "baseline",
        "warn-version": "v1.24",
        "exempt": "true",
    }
    at = f"{NAMESPACES}/{stage.home}"
    tries = {
        f"{label}: {value}, {when}": one
        for label, value in lowered.items()
        for when, one in (
            ("later", Try("PATCH", at, {"metadata": {"labels": {prefix + label: value}}})),
            ("from the start", Try("POST", NAMESPACES, namespace(labels={prefix + label: value}))),
        )
    }
    tries["enforce, taken away"] = Try("PATCH", at, {"metadata": {"labels": {f"{prefix}enforce": None}}})
    tries["enforce, left out"] = Try("POST", NAMESPACES, namespace(labels={f"{prefix}enforce": None}))
    tries["all labels at once"] = Try("PATCH", at, [{"op": "remove", "path": "/metadata/labels"}])
    held(stage.thief, tries, ACCOUNT)


@attack("a stolen account takes over, gives away or has deleted a namespace", needs="cluster")
def takes_namespaces(target: Target) -> None:
    stage = target.cluster
    own = namespace()["metadata"]["labels"]
    held(
        stage.thief,
        {
            **{
                f"takes over {name}": Try("PATCH", f"{NAMESPACES}/{name}", {"metadata": {"labels": own}})
                for name in (stage.elsewhere, "kube-system", "default", "fairlot")
            },
            "labels one that is not its own": Try(
                "PATCH",
                f"{NAMESPACES}/{stage.elsewhere}",
                {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}}},
            ),
            "makes one of no tenant": Try("POST", NAMESPACES, namespace(labels={"fairlot.io/tenant": None})),
            "makes one of the system's names": Try("POST", NAMESPACES, namespace("kube-77")),
            "makes one that others may trust": Try("POST", NAMESPACES, namespace("cert-manager", "manager")),
            "makes one under another's name": Try("POST", NAMESPACES, namespace("monitoring")),
            "makes one that others let in by its labels": Try(
                "POST", NAMESPACES, namespace(labels={"team": "monitoring"})
            ),
            "has one let in later": Try(
                "PATCH", f"{NAMESPACES}/{stage.home}", {"metadata": {"labels": {"team": "monitoring"}}}
            ),
            "gives one to another tenant": Try(
                "PATCH", f"{NAMESPACES}/{stage.home}", {"metadata": {"labels": {"fairlot.io/tenant": "9"}}}
            ),
            "gives one to another Fairlot": Try(
                "PATCH",
                f"{NAMESPACES}/{stage.home}",
                {"metadata": {"labels": {"fairlot.io/cluster": "other"}}},
            ),
            "takes one out of the policies": Try(
                "PATCH", f"{NAMESPACES}/{stage.home}", {"metadata": {"labels": {"fairlot.io/tenant": None}}}
            ),
            "sets where its pods go": Try(
                "PATCH",
                f"{NAMESPACES}/{stage.home}",
                {"metadata": {"annotations": {"scheduler.alpha.kubernetes.io/node-selector": "x=y"}}},
            ),
            "has one deleted, for its owner is gone": Try(
                "PATCH", f"{NAMESPACES}/{stage.home}", {"metadata": {"ownerReferences": [GONE]}}
            ),
            "keeps one from being deleted": Try(
                "PATCH", f"{NAMESPACES}/{stage.home}", {"metadata": {"finalizers": ["example.org/kept"]}}
            ),
            "deletes one": Try("DELETE", f"{NAMESPACES}/{stage.home}"),
            "finalizes one": Try("PUT", f"{NAMESPACES}/{stage.home}/finalize", namespace(stage.home)),
        },
        ACCOUNT,
        RBAC,
    )


@attack("a stolen account opens or deletes the network policies of a tenant", needs="cluster")
def opens_walls(target: Target) -> None:
    stage = target.cluster
    policies, quotas, accounts = (path.format(stage.home) for path in (NETWORK_POLICIES, QUOTAS, ACCOUNTS))
    wall = stage.admin.get(f"{policies}/fairlot")["spec"]
    sessions = stage.admin.get(f"{policies}/fairlot-sessions")["spec"]
    anybody: Object = {"namespaceSelector": {}}
    owned = {"metadata": {"ownerReferences": [GONE]}}
    web = {"from": [{"ipBlock": {"cidr": "10.0.0.7/32"}}], "ports": [{"protocol": "TCP", "port": "main"}]}
    outside = {"to": [{"ipBlock": {"cidr": "10.1.0.0/16"}}]}
    passes(
        stage.thief,
        {
            "what admins open": Try(
                "PATCH", f"{policies}/fairlot", {"spec": wall | {"egress": [*wall["egress"], outside]}}
            ),
            "the portal comes in to sessions": Try(
                "PATCH", f"{policies}/fairlot-sessions", {"spec": sessions | {"ingress": [web]}}
            ),
            "the quota": Try("PATCH", f"{quotas}/fairlot", {"spec": {"hard": {"pods": "7"}}}),
        },
    )

    def rewall(**spec: Any) -> Try:
        return Try("PATCH", f"{policies}/fairlot", {"spec": spec})

    def resession(**spec: Any) -> Try:
        return Try("PATCH", f"{policies}/fairlot-sessions", {"spec": spec})

    held(
        stage.thief,
        {
            "lets everybody in": rewall(ingress=[{}]),
            "lets everybody in by an empty list": rewall(ingress=[{"from": []}]),
            "lets all namespaces in": rewall(ingress=[{"from": [anybody]}]),
            "lets an address in": rewall(ingress=[{"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}]),
            "lets some pods of others in": rewall(ingress=[{"from": [{**anybody, "podSelector": {}}]}]),
            "lets pods out to everywhere": rewall(egress=[{}]),
            "lets pods out to other namespaces": rewall(egress=[{"to": [anybody]}]),
            "holds for none of the pods": rewall(podSelector={"matchLabels": {"no": "pod"}}),
            "holds for one direction": rewall(policyTypes=["Egress"]),
            "holds for one direction, said twice": rewall(policyTypes=["Egress", "Egress"]),
            "opens sessions to all": resession(ingress=[{}]),
            "opens all ports of sessions": resession(ingress=[{"from": web["from"]}]),
            "opens another port of sessions": resession(ingress=[web | {"ports": [{"port": 22}]}]),
            "opens what is no session": resession(podSelector=None, ingress=[web]),
            "opens all by one more": Try(
                "POST",
                policies,
                {"metadata": {"name": "another"}, "spec": {"podSelector": {}, "ingress": [{}]}},
            ),
            "changes the tenant's own": Try("PATCH", f"{policies}/his", {"spec": {"ingress": [{}]}}),
            "has one deleted, for its owner is gone": Try("PATCH", f"{policies}/fairlot", owned),
            "deletes one": Try("DELETE", f"{policies}/fairlot"),
            "lifts a quota of others": Try("PATCH", f"{quotas}/his", {"spec": {"hard": {"secrets": "9999"}}}),
            "makes another quota": Try(
                "POST", quotas, {"metadata": {"name": "x"}, "spec": {"hard": {"pods": "0"}}}
            ),
            "has a quota deleted": Try("PATCH", f"{quotas}/fairlot", owned),
            "sets limits of pods": Try("POST", RANGES.format(stage.home), limit_range(default={"cpu": "1"})),
            "makes an account": Try(
                "POST", accounts, {"metadata": {"name": "x"}, "automountServiceAccountToken": False}
            ),
            "changes the tenant's account": Try("PATCH", f"{accounts}/his", {"secrets": [{"name": "his"}]}),
            "changes the default account": Try(
                "PATCH", f"{accounts}/default", {"imagePullSecrets": [{"name": "his"}]}
            ),
            "gives its pods' account a token": Try(
                "PATCH", f"{accounts}/fairlot-job", {"automountServiceAccountToken": True}
            ),
            "gives its pods' account secrets": Try(
                "PATCH", f"{accounts}/fairlot-job", {"secrets": [{"name": "his"}]}
            ),
            "has its pods' images pulled with his secret": Try(
                "PATCH", f"{accounts}/fairlot-job", {"imagePullSecrets": [{"name": "his"}]}
            ),
            "gives its pods a role of a cloud": Try(
                "PATCH",
                f"{accounts}/fairlot-job",
                {"metadata": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/his"}}},
            ),
            "has an account deleted": Try("PATCH", f"{accounts}/fairlot-job", owned),
        },
        ACCOUNT,
        RBAC,
    )


# --- a stolen account: secrets -----------------------------------------------------------------------------------


def secret_of(stage: Stage, **more: Any) -> Object:
    """Returns an additional Secret for Fairlot's existing Job, in the form in which Fairlot creates Secrets."""
    name = objects.job_name(JOB)
    there = stage.admin.get(f"{JOBS.format(stage.home)}/{name}")["metadata"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": there["uid"]}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {
            "name": f"{name}-files-9",
            "labels": there["labels"],
            "annotations": {objects.EPOCH: "1"},
            "ownerReferences": [owner],
        },
        "stringData": {"a": "b"},
        **more,
    }


@attack("a stolen account reads a secret by asking for it or by writing to it", needs="cluster")
def reads_secrets(target: Target) -> None:
    """Tries to read secrets with a stolen token, by read requests and by write requests.

    A write can reveal a secret, because the response to a patch contains the whole object.
    """
    stage = target.cluster
    at = SECRETS.format(stage.home)
    of_a_job = f"{at}/{objects.job_name(JOB)}-variables"
    names = {"a tenant's": f"{at}/his", "a job's": of_a_job}
    tries: dict[str, Try] = {
        "all": Try("GET", at),
        "by a watch": Try("GET", f"{at}?watch=true&timeoutSeconds=1"),
    }
    for whose, path in names.items():
        key = "password" if path.endswith("his") else "HF_TOKEN"
        tries |= {
            f"{whose}, by reading": Try("GET", path),
            f"{whose}, by an empty patch": Try("PATCH", path, {}),
            # The API server's error message about a copied value contains the value.
            f"{whose}, by a copy to its type": Try(
                "PATCH", path, [{"op": "copy", "from": f"/data/{key}", "path": "/type"}]
            ),
            f"{whose}, by a copy to a label": Try(
                "PATCH", path, [{"op": "copy", "from": f"/data/{key}", "path": "/metadata/labels"}]
            ),
            f"{whose}, by guessing": Try(
                "PATCH", path, [{"op": "test", "path": f"/data/{key}", "value": "eA=="}]
            ),
            f"{whose}, by deleting": Try("DELETE", path, {"propagationPolicy": "Foreground"}),
        }
    held(stage.thief, tries, SECRETS_POLICY, RBAC)


@attack("a stolen account writes secrets that are not of its jobs", needs="cluster")
def writes_secrets(target: Target) -> None:
    stage = target.cluster
    at = SECRETS.format(stage.home)
    good = secret_of(stage)
    own = f"{at}/{objects.job_name(JOB)}-files-0"
    there = secret_of(stage)
    there["metadata"]["name"] = f"{objects.job_name(JOB)}-files-0"
    docker = {"type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": "{}"}}
    passes(
        stage.thief,
        {
            "of a Job": Try("POST", at, good),
            "to pull images": Try("POST", at, good | docker),
            "one that is there": Try("PUT", own, there),
        },
    )
    node = {"apiVersion": "v1", "kind": "Node", "name": good["metadata"]["name"], "uid": GONE["uid"]}
    wrong = {
        "of no job": changed(good, "metadata/labels", {}),
        "under another name": changed(good, "metadata/name", "his-password"),
        "under the name of another Job's": changed(
            good, "metadata/name", f"{objects.job_name(OTHER)}-variables"
        ),
        "of no owner": changed(good, "metadata/ownerReferences", []),
        "of an owner that is no Job": changed(good, "metadata/ownerReferences", [node]),
        "that is kept": changed(good, "metadata/finalizers", ["example.org/kept"]),
        "of a bootstrap token": good | {"type": "bootstrap.kubernetes.io/token"},
        "of a type that a controller acts on": good | {"type": "helm.sh/release.v1"},
        "that a controller fills with another": changed(
            good,
            "metadata/annotations",
            {objects.EPOCH: "1", "replicator.v1.mittwald.de/replicate-from": "x/y"},
        ),
        "that a controller acts on by a label": changed(
            good, "metadata/labels", good["metadata"]["labels"] | {"app.kubernetes.io/part-of": "argocd"}
        ),
        "with no attempt": changed(good, "metadata/annotations", {}),
    }
    held(
        stage.thief,
        {
            **{what: Try("POST", at, made) for what, made in wrong.items()},
            "over the tenant's": Try("PUT", f"{at}/his", changed(good, "metadata/name", "his")),
            "over one of a later attempt": Try(
                "PUT", own, changed(there, "metadata/annotations", {objects.EPOCH: "0"})
            ),
            "elsewhere": Try("POST", SECRETS.format(stage.elsewhere), good),
        },
        SECRETS_POLICY,
        RBAC,
    )


def with_volume(made: Object, template: str, **source: Any) -> Object:
    volumes = f"{template}/volumes"
    at: Any = made
    for step in volumes.split("/"):
        at = at[step]
    return changed(made, volumes, [*at, {"name": "more", **source}])


def works(stage: Stage) -> dict[str, tuple[str, Object, str]]:
    """Returns a Job and a pod of Fairlot, by description. Each value is (API path for creating it, object, path of its
    pod spec)."""
    return {
        "a Job": (JOBS.format(stage.home), stage.job(), "spec/template/spec"),
        "a pod": (PODS.format(stage.home), stage.bare(), "spec"),
    }


def tried(stage: Stage, changes: dict[str, Any], *by: str) -> None:
    """Asserts that a policy named in `by` refuses each malicious change, both of a Job's pod template and of a bare
    pod.

    A change is a function that is called with the object and the path of its pod spec, and returns the changed object.
    """
    for kind, (at, good, template) in works(stage).items():
        passes(stage.thief, {kind: Try("POST", at, good)})
        held(
            stage.thief,
            {f"{kind} {what}": Try("POST", at, change(good, template)) for what, change in changes.items()},
            *by,
        )


@attack("a stolen account runs a program with secrets of the tenant or of another job", needs="cluster")
def mounts_secrets(target: Target) -> None:
    stage = target.cluster
    other = f"{objects.job_name(JOB)}-variables"
    key = {"name": "X", "valueFrom": {"secretKeyRef": {"name": "his", "key": "password"}}}
    of_other = {"name": "X", "valueFrom": {"secretKeyRef": {"name": other, "key": "HF_TOKEN"}}}
    of_map = {"name": "X", "valueFrom": {"configMapKeyRef": {"name": "his", "key": "x"}}}
    init = container("first", envFrom=[{"secretRef": {"name": "his"}}])
    projected = {"sources": [{"secret": {"name": "his"}}]}
    both = {"sources": [{"configMap": {"name": "his"}}, {"secret": {"name": other}}]}
    csi = {"driver": "secrets-store.csi.k8s.io", "nodePublishSecretRef": {"name": "his"}}
    flex = {"driver": "example.org/flex", "secretRef": {"name": "his"}}
    tried(
        stage,
        {
            "with a volume of his secret": lambda made, at: with_volume(
                made, at, secret={"secretName": "his"}
            ),
            "with a volume of another job's": lambda made, at: with_volume(
                made, at, secret={"secretName": other}
            ),
            "with a projected volume": lambda made, at: with_volume(made, at, projected=projected),
            "with a projected volume of several": lambda made, at: with_volume(made, at, projected=both),
            "with a volume of his config map": lambda made, at: with_volume(
                made, at, configMap={"name": "his"}
            ),
            "with a volume that a driver makes from his secret": lambda made, at: with_volume(
                made, at, csi=csi
            ),
            "with a volume of an old driver": lambda made, at: with_volume(made, at, flexVolume=flex),
            "with a variable": lambda made, at: changed(made, f"{at}/containers/0/env/0", key),
            "with a variable of another job's": lambda made, at: changed(
                made, f"{at}/containers/0/env/0", of_other
            ),
            "with a variable of his config map": lambda made, at: changed(
                made, f"{at}/containers/0/env/0", of_map
            ),
            "with all variables": lambda made, at: changed(
                made, f"{at}/containers/0/envFrom", [{"secretRef": {"name": "his"}}]
            ),
            "with all variables of a config map": lambda made, at: changed(
                made, f"{at}/containers/0/envFrom", [{"configMapRef": {"name": "his"}}]
            ),
            "with them in an init container": lambda made, at: changed(made, f"{at}/initContainers", [init]),
            "whose image is pulled with his secret": lambda made, at: changed(
                made, f"{at}/imagePullSecrets", [{"name": "his"}]
            ),
            "whose image is pulled with another job's": lambda made, at: changed(
                made, f"{at}/imagePullSecrets", [{"name": f"{objects.job_name(JOB)}-image"}]
            ),
        },
        WORK,
        STANDARD,  # refuses the pod with the older kind of driver
        policy("fairlot-confined"),  # refuses the pod with the newer kind of driver
    )
    # The name of this Job is a prefix of the names of another Job's Secrets. A bare pod has no Secrets at all.
    longer = f"{objects.job_name(JOB)}-files"
    stolen = changed(stage.job(given=NO_SECRETS), "metadata/name", longer)
    stolen = with_volume(stolen, "spec/template/spec", secret={"secretName": f"{longer}-0"})
    short = changed(stage.job(given=NO_SECRETS), "metadata/name", "his")
    named = changed(stage.bare(), "metadata/name", "his")
    own = with_volume(stage.bare(), "spec", secret={"secretName": f"{objects.pod_name(BURST)}-variables"})
    jobs, pods = JOBS.format(stage.home), PODS.format(stage.home)
    held(
        stage.thief,
        {
            "a Job that is called as the secrets": Try("POST", jobs, stolen),
            "a Job that is called as the tenant's things": Try("POST", jobs, short),
            "a pod that is called so": Try("POST", pods, named),
            "a pod with secrets that are called as it is": Try("POST", pods, own),
        },
        WORK,
    )
    # A Job must be deleted together with its Secrets. Otherwise a later Job of its name could use them.
    gang = f"{jobs}/{objects.job_name(JOB)}"
    passes(stage.thief, {"as Fairlot does": Try("DELETE", gang, {"propagationPolicy": "Background"})})
    held(
        stage.thief,
        {
            "deletes a Job from above its secrets": Try("DELETE", gang, {"propagationPolicy": "Orphan"}),
            "the same in the old way": Try("DELETE", gang, {"orphanDependents": True}),
            "the same by saying nothing": Try("DELETE", gang),
        },
        DELETES,
    )


@attack("a stolen account runs a program as another account or with a token", needs="cluster")
def runs_as_others(target: Target) -> None:
    stage = target.cluster
    token = {"sources": [{"serviceAccountToken": {"path": "token"}}]}
    bundle = {"sources": [{"clusterTrustBundle": {"name": "x", "path": "x"}}]}

    def as_(name: str | None) -> Any:
        return lambda made, at: changed(made, f"{at}/serviceAccountName", name)

    def mounting(value: bool | None) -> Any:
        return lambda made, at: changed(made, f"{at}/automountServiceAccountToken", value)

    tried(
        stage,
        {
            "as an account of the tenant": as_("his"),
            "as the default account": as_("default"),
            "as whoever is the default": as_(None),
            "as one by its old field": lambda made, at: changed(
                changed(made, f"{at}/serviceAccountName", None), f"{at}/serviceAccount", "his"
            ),
            "with a token": mounting(True),
            "with a token as the account says": mounting(None),
            "with a token in a projected volume": lambda made, at: with_volume(made, at, projected=token),
            "with certificates in a projected volume": lambda made, at: with_volume(
                made, at, projected=bundle
            ),
        },
        WORK,
    )


@attack("a stolen account runs a program beyond its form", needs="cluster")
def runs_beyond(target: Target) -> None:
    """Tries pod fields that use other teams' services, networks or devices, or that preempt other pods."""
    stage = target.cluster
    classes, high = "/apis/scheduling.k8s.io/v1/priorityclasses", f"high-{stage.home}"
    stage.admin.create(classes, {"metadata": {"name": high}, "value": 10**6})

    def marked(kind: str, key: str) -> Any:
        def change(made: Object, at: str) -> Object:
            place = "spec/template/metadata" if at.startswith("spec/template") else "metadata"
            found: Any = made
            for step in place.split("/"):
                found = found[step]
            return changed(made, f"{place}/{kind}", found.get(kind, {}) | {key: "his"})

        return change

    everything = [{"operator": "Exists"}]
    control_plane = [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}]
    try:
        tried(
            stage,
            {
                "that the tenant's services lead to": marked("labels", "app"),
                "that a cloud gives a role": marked("labels", "azure.workload.identity/use"),
                "in another network": marked("annotations", "k8s.v1.cni.cncf.io/networks"),
                "with devices by an annotation": marked("annotations", "cdi.k8s.io/all"),
                "with secrets by an annotation": marked("annotations", "vault.hashicorp.com/agent-inject"),
                "on every node": lambda made, at: changed(made, f"{at}/tolerations", everything),
                "on nodes of the control plane": lambda made, at: changed(
                    made, f"{at}/tolerations", control_plane
                ),
                "before all others": lambda made, at: changed(made, f"{at}/priorityClassName", high),
            },
            WORK,
            GPUS,  # refuses the pod with a device
        )
    finally:
        stage.admin.delete(f"{classes}/{high}")
    pods, jobs = PODS.format(stage.home), JOBS.format(stage.home)
    bare, job = stage.bare(), stage.job()
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "his", "uid": GONE["uid"], "controller": True}
    unmarked = changed(bare, "metadata/labels", {"app.kubernetes.io/managed-by": "fairlot"})
    adopting = changed(job, "spec/manualSelector", True)
    adopting["spec"]["selector"] = {"matchLabels": {objects.JOB: str(OTHER)}}
    placed = changed(bare, "spec/nodeName", "some-node")
    held(
        stage.thief,
        {
            "a pod of no job": Try("POST", pods, unmarked),
            "a pod of another's Job": Try("POST", pods, changed(bare, "metadata/ownerReferences", [owner])),
            "a pod that a Job takes for its own": Try(
                "POST",
                pods,
                changed(bare, "metadata/labels", bare["metadata"]["labels"] | {"controller-uid": "x"}),
            ),
            "a pod that nobody can delete": Try(
                "POST", pods, changed(bare, "metadata/finalizers", ["example.org/x"])
            ),
            "a Job of no job": Try("POST", jobs, changed(job, "metadata/labels", {"a": "b"})),
            "a Job with pods of no job": Try(
                "POST", jobs, changed(job, "spec/template/metadata/labels", {"a": "b"})
            ),
            "a Job that takes others' pods": Try("POST", jobs, adopting),
            "a Job that nobody can delete": Try(
                "POST", jobs, changed(job, "metadata/finalizers", ["example.org/x"])
            ),
            "a Job that goes when it likes": Try(
                "POST", jobs, changed(job, "metadata/ownerReferences", [owner])
            ),
            "a pod on a node of its choice": Try("POST", pods, placed),
            **{
                f"a pod with {what}": Try("POST", pods, changed(bare, f"spec/{path}", value))
                for what, path, value in (
                    ("privileges", "containers/0/securityContext", {"privileged": True}),
                    ("the node's network", "hostNetwork", True),
                    ("the node's processes", "hostPID", True),
                    ("the node's files", "volumes/0", {"name": "shared-memory", "hostPath": {"path": "/"}}),
                )
            },
            **{
                f"{what}, elsewhere": Try("POST", path.format(stage.elsewhere), made)
                for what, path, made in (("a pod", PODS, bare), ("a Job", JOBS, job))
            },
        },
        WORK,
        GPUS,  # refuses the pod without Fairlot's labels
        policy("fairlot-placement"),
        STANDARD,
        RBAC,
    )


@attack("a stolen account changes or deletes what is the tenant's", needs="cluster")
def changes_others(target: Target) -> None:
    stage = target.cluster
    pods, jobs, services, maps = (path.format(stage.home) for path in (PODS, JOBS, SERVICES, MAPS))
    image = [{"op": "replace", "path": "/spec/containers/0/image", "value": "example/mallory"}]
    name, bare = objects.job_name(JOB), objects.pod_name(BARE)
    over = [{"op": "add", "path": "/spec/activeDeadlineSeconds", "value": 1}]
    passes(
        stage.thief,
        {
            "ends its own pod": Try("PATCH", f"{pods}/{bare}", over),
            "deletes its own pod": Try("DELETE", f"{pods}/{bare}"),
            "deletes its own service": Try("DELETE", f"{services}/{name}"),
            "deletes its own config map": Try("DELETE", f"{maps}/{name}"),
        },
    )
    held(
        stage.thief,
        {
            "runs another image in his pod": Try("PATCH", f"{pods}/his", image),
            "runs another image in a pod of a job": Try("PATCH", f"{pods}/{bare}", image),
            "makes his pod its own": Try(
                "PATCH", f"{pods}/his", {"metadata": {"labels": {objects.JOB: "1"}}}
            ),
            "ends his pod": Try("PATCH", f"{pods}/his", over),
            "deletes his pod": Try("DELETE", f"{pods}/his"),
            "starts his Job": Try("PATCH", f"{jobs}/his", {"spec": {"suspend": False}}),
            "makes his Job its own": Try(
                "PATCH", f"{jobs}/his", {"metadata": {"labels": {objects.JOB: "1"}}}
            ),
            "deletes his Job": Try("DELETE", f"{jobs}/his", {"propagationPolicy": "Background"}),
            "deletes all Jobs": Try("DELETE", jobs),
            "deletes his service": Try("DELETE", f"{services}/his"),
            "deletes his config map": Try("DELETE", f"{maps}/his"),
            "changes his config map": Try("PATCH", f"{maps}/his", {"data": {"a": "b"}}),
            "changes the authority that pods trust": Try(
                "PATCH", f"{maps}/kube-root-ca.crt", {"data": {"ca.crt": "x"}}
            ),
            "gives a pod of a job a label of his": Try(
                "PATCH", f"{pods}/{bare}", {"metadata": {"labels": {"app": "his"}}}
            ),
            "lets a pod of a job onto every node": Try(
                "PATCH",
                f"{pods}/{bare}",
                [{"op": "add", "path": "/spec/tolerations/-", "value": {"operator": "Exists"}}],
            ),
            "gives pods of a Job an annotation": Try(
                "PATCH",
                f"{jobs}/{name}",
                {"spec": {"template": {"metadata": {"annotations": {"k8s.v1.cni.cncf.io/networks": "x"}}}}},
            ),
            "lets pods of a Job onto every node": Try(
                "PATCH",
                f"{jobs}/{name}",
                {"spec": {"template": {"spec": {"tolerations": [{"operator": "Exists"}]}}}},
            ),
            "has a Job deleted, for its owner is gone": Try(
                "PATCH", f"{jobs}/{name}", {"metadata": {"ownerReferences": [GONE]}}
            ),
        },
        WORK,
        DELETES,
        SERVICES_POLICY,
        RBAC,
    )


@attack("a stolen account goes into pods, nodes and volumes", needs="cluster")
def goes_in(target: Target) -> None:
    stage = target.cluster
    his = f"{PODS.format(stage.home)}/his"
    own = f"{PODS.format(stage.home)}/{objects.pod_name(BARE)}"
    later = {"spec": {"ephemeralContainers": [{"name": "later", "image": "example/x"}]}}
    claim = {"metadata": {"name": "c"}, "spec": {"volumeName": "another", "accessModes": ["ReadWriteOnce"]}}
    bound = {"metadata": {"name": "his"}, "target": {"apiVersion": "v1", "kind": "Node", "name": "some"}}
    held(
        stage.thief,
        {
            **{
                f"{what} of {whose} pod": Try("POST", f"{path}/{what}?command=id", None)
                for what in ("exec", "attach", "portforward", "proxy", "eviction")
                for whose, path in (("his", his), ("its own", own))
            },
            "puts a container into his pod": Try("PATCH", f"{his}/ephemeralcontainers", later),
            "puts a container into its own": Try("PATCH", f"{own}/ephemeralcontainers", later),
            "says how a pod fares": Try("PATCH", f"{own}/status", {"status": {"phase": "Succeeded"}}),
            "resizes a pod": Try("PATCH", f"{own}/resize", {"spec": {}}),
            "binds a pod": Try("POST", f"{own}/binding", bound),
            "binds a pod in the old way": Try("POST", f"/api/v1/namespaces/{stage.home}/bindings", bound),
            "says how a Job fares": Try(
                "PATCH", f"{JOBS.format(stage.home)}/{objects.job_name(JOB)}/status", {}
            ),
            "claims another's volume": Try("POST", CLAIMS.format(stage.home), claim),
            "makes a volume of a node's files": Try(
                "POST",
                "/api/v1/persistentvolumes",
                {"metadata": {"name": "v"}, "spec": {"hostPath": {"path": "/"}}},
            ),
            "changes a node": Try("PATCH", f"{NODES}/some", {"spec": {"unschedulable": True}}),
            "asks a node's kubelet": Try("GET", f"{NODES}/some/proxy/pods"),
            "reads a pod elsewhere": Try("GET", f"{PODS.format(stage.elsewhere)}/some"),
            "reads a log elsewhere": Try("GET", f"{PODS.format(stage.elsewhere)}/some/log"),
            "reads a config map elsewhere": Try("GET", f"{MAPS.format('kube-system')}/kube-root-ca.crt"),
            "claims a device": Try(
                "POST",
                f"/apis/resource.k8s.io/v1/namespaces/{stage.home}/resourceclaims",
                {"metadata": {"name": "c"}},
            ),
        },
        RBAC,
    )


@attack("a stolen account acts as somebody else", needs="cluster")
def impersonates(target: Target) -> None:
    stage = target.cluster
    for headers in (
        {"Impersonate-User": "test-admin"},
        {"Impersonate-User": "test-admin", "Impersonate-Group": "system:masters"},
        {"Impersonate-User": f"system:serviceaccount:{stage.home}:his"},
        {"Impersonate-User": "system:kube-scheduler"},
    ):
        answer = stage.thief.http.get(NODES, headers=headers)
        assert answer.status_code == 403, f"it is {headers}"
        assert "cannot impersonate" in answer.json()["message"]


@attack("a stolen account leads connections elsewhere", needs="cluster")
def leads_elsewhere(target: Target) -> None:
    stage = target.cluster
    at = SERVICES.format(stage.home)
    selector = {objects.JOB: "1"}
    good: Object = {
        "metadata": {"name": "api", "labels": {"fairlot.io/service": "1"}},
        "spec": {"ports": [{"port": 80}], "selector": {"fairlot.io/service": "1"}},
    }
    hosts: Object = {"metadata": {"name": "fairlot-x", "labels": selector}, "data": {"hostfile": "a"}}
    maps = MAPS.format(stage.home)
    passes(stage.thief, {"a service": Try("POST", at, good), "a config map": Try("POST", maps, hosts)})
    dns = {"external-dns.alpha.kubernetes.io/hostname": "www.example.org"}
    copied = {"replicator.v1.mittwald.de/replicate-from": "kube-system/x"}
    in_home = f"namespaces/{stage.home}"
    held(
        stage.thief,
        {
            "to an address outside": Try("POST", at, changed(good, "spec/externalIPs", ["192.0.2.7"])),
            "to a name outside": Try(
                "POST", at, changed(good, "spec", {"type": "ExternalName", "externalName": "x.org"})
            ),
            "from outside by a load balancer": Try("POST", at, changed(good, "spec/type", "LoadBalancer")),
            "from outside by nodes": Try("POST", at, changed(good, "spec/type", "NodePort")),
            "to pods of the tenant": Try("POST", at, changed(good, "spec/selector", {"app": "his"})),
            "to wherever it says": Try("POST", at, changed(good, "spec/selector", None)),
            "by a service that is nobody's": Try("POST", at, changed(good, "metadata/labels", {})),
            "by a name outside": Try("POST", at, changed(good, "metadata/annotations", dns)),
            "by a config map of others": Try("POST", maps, changed(hosts, "metadata/name", "his-settings")),
            "by a config map that is nobody's": Try("POST", maps, changed(hosts, "metadata/labels", {})),
            "by a config map that a controller fills": Try(
                "POST", maps, changed(hosts, "metadata/annotations", copied)
            ),
            "his service": Try("PATCH", f"{at}/his", {"spec": {"selector": selector}}),
            "by endpoints": Try("POST", f"/api/v1/{in_home}/endpoints", {"metadata": {"name": "api"}}),
            "by slices of endpoints": Try(
                "POST",
                f"/apis/discovery.k8s.io/v1/{in_home}/endpointslices",
                {"metadata": {"name": "api"}, "addressType": "IPv4", "endpoints": []},
            ),
            "by an ingress": Try(
                "POST", f"/apis/networking.k8s.io/v1/{in_home}/ingresses", {"metadata": {"name": "api"}}
            ),
            "elsewhere": Try("POST", SERVICES.format(stage.elsewhere), good),
        },
        SERVICES_POLICY,
        RBAC,
    )


# --- a tenant: GPUs past Fairlot ---------------------------------------------------------------------------------


def from_(kind: str, prefix: str | None = None) -> Object:
    """Returns one `envFrom` entry that refers to an object named "his", which belongs to the team's user. `kind` is
    `configMapRef` or `secretRef`."""
    return {kind: {"name": "his"}} | ({} if prefix is None else {"prefix": prefix})


RUNTIMES = ("NVIDIA", "AMD", "ASCEND", "HABANA")
VOID = [{"name": f"{runtime}_VISIBLE_DEVICES", "value": "void"} for runtime in RUNTIMES]
# Fields of a container by which a node's container runtime would give it access to GPUs.
EXPOSED: dict[str, Object] = {
    **{
        f"envFrom a {kind} with the prefix {prefix!r}": {"envFrom": [from_(kind, prefix)]}
        for kind in ("configMapRef", "secretRef")
        for prefix in (
            None,
            "",
            "N",
            "NVIDIA",
            "NVIDIA_",
            "NVIDIA_VISIBLE_",
            "NVIDIA_VISIBLE_DEVICE",
            "C",
            "CUDA_",
            "A",
            "AMD_",
            "ASCEND_VISIBLE_",
            "HABANA_",
        )
    },
    "envFrom without a prefix, and no GPU of NVIDIA's": {"env": VOID[:1], "envFrom": [from_("configMapRef")]},
    "envFrom several, of which one is harmless": {
        "envFrom": [from_("secretRef", "APP_"), from_("configMapRef")]
    },
    "NVIDIA_VISIBLE_DEVICES": {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]},
    "NVIDIA_VISIBLE_DEVICES after it is void": {
        "env": [*VOID, {"name": "NVIDIA_VISIBLE_DEVICES", "value": "0"}],
        "envFrom": [from_("configMapRef")],
    },
    "NVIDIA_VISIBLE_DEVICES from another variable": {
        "env": [{"name": "A", "value": "all"}, {"name": "NVIDIA_VISIBLE_DEVICES", "value": "$(A)"}]
    },
    **{
        f"NVIDIA_VISIBLE_DEVICES from a {source}": {
            "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {source: {"name": "his", "key": "x"}}}]
        }
        for source in ("configMapKeyRef", "secretKeyRef")
    },
    "NVIDIA_VISIBLE_DEVICES from an annotation": {
        "env": [
            {
                "name": "NVIDIA_VISIBLE_DEVICES",
                "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['x']"}},
            }
        ]
    },
    # The runtime gives all GPUs to an image that looks very old.
    "CUDA_VERSION": {"env": [{"name": "CUDA_VERSION", "value": "8.0"}]},
    "NVIDIA_IMEX_CHANNELS": {"env": [{"name": "NVIDIA_IMEX_CHANNELS", "value": "0"}]},
    "NVIDIA_MIG_CONFIG_DEVICES": {"env": [{"name": "NVIDIA_MIG_CONFIG_DEVICES", "value": "all"}]},
    "AMD_VISIBLE_DEVICES": {"env": [{"name": "AMD_VISIBLE_DEVICES", "value": "all"}]},
    "HABANA_VISIBLE_DEVICES": {"env": [{"name": "HABANA_VISIBLE_DEVICES", "value": "all"}]},
    "mounts that name GPUs": {
        "volumeMounts": [{"name": "v", "mountPath": "/var/run/nvidia-container-devices/all"}],
    },
}
HARMLESS: dict[str, Object] = {
    "no variables": {},
    "envFrom with a prefix": {"envFrom": [from_("configMapRef", "APP_"), from_("secretRef", "X")]},
    "envFrom and no GPU": {"env": VOID, "envFrom": [from_("configMapRef"), from_("secretRef", "NVIDIA_")]},
    "variables": {
        "env": [
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"},
            {"name": "CUDA_VISIBLE_DEVICES", "value": "-1"},
            {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "his", "key": "x"}}},
        ]
    },
}
EMPTY = [{"name": "v", "emptyDir": {}}]


@attack("a tenant's pod gets GPUs by its variables", needs="cluster")
def by_variables(target: Target) -> None:
    stage = target.cluster
    pods = PODS.format(stage.home)
    passes(
        stage.bob,
        {what: Try("POST", pods, pod("p", container(**fields))) for what, fields in HARMLESS.items()},
    )
    tries: dict[str, Try] = {}
    for what, fields in EXPOSED.items():
        made = pod("p", container(**fields), volumes=EMPTY)
        init = pod("p", initContainers=[container("first", **fields)], volumes=EMPTY)
        beside = pod(
            "p", initContainers=[container("beside", restartPolicy="Always", **fields)], volumes=EMPTY
        )
        tries |= {
            what: Try("POST", pods, made),
            f"{what}, in an init container": Try("POST", pods, init),
            f"{what}, in a sidecar": Try("POST", pods, beside),
            f"{what}, in the second container": Try(
                "POST", pods, pod("p", container(), container("second", **fields), volumes=EMPTY)
            ),
        }
    held(stage.bob, tries, GPUS)


@attack("a tenant's pod gets GPUs by a container that comes later", needs="cluster")
def by_later_containers(target: Target) -> None:
    stage = target.cluster
    at = f"{PODS.format(stage.home)}/his/ephemeralcontainers"

    def later(fields: Object) -> Try:
        one = {"name": "later", "image": "example/none", "securityContext": CONFINED, **fields}
        return Try("PATCH", at, [{"op": "add", "path": "/spec/ephemeralContainers", "value": [one]}])

    passes(stage.bob, {what: later(fields) for what, fields in HARMLESS.items()})
    # Bob's pod has no volumes, so fields that mount a volume are left out.
    held(
        stage.bob,
        {what: later(fields) for what, fields in EXPOSED.items() if "volumeMounts" not in fields},
        GPUS,
    )


def limits(name: str, where: str = "limits") -> Object:
    both = {"requests": {name: "1"}, "limits": {name: "1"}}
    return {"resources": both if where == "both" else {where: {name: "1"}}}


@attack("a tenant's pod asks for devices by whatever name", needs="cluster")
def by_resources(target: Target) -> None:
    stage = target.cluster
    pods = PODS.format(stage.home)
    names = (
        "nvidia.com/gpu",
        "nvidia.com/gpu.shared",
        "nvidia.com/mig-1g.5gb",
        "nvidia.com/gpumem",
        "amd.com/gpu",
        "gpu.intel.com/i915",
        "habana.ai/gaudi",
        "aliyun.com/gpu-mem",
        "volcano.sh/vgpu-number",
        "smarter-devices/nvidia0",
        "deviceclass.resource.kubernetes.io/gpu",
    )
    usual = {"limits": {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi"}, "requests": {"cpu": "100m"}}
    passes(stage.bob, {"processors and memory": Try("POST", pods, pod("p", container(resources=usual)))})
    tries: dict[str, Try] = {}
    for name in names:
        tries[name] = Try("POST", pods, pod("p", container(**limits(name))))
        tries[f"{name}, in both"] = Try("POST", pods, pod("p", container(**limits(name, "both"))))
        tries[f"{name}, in an init container"] = Try(
            "POST", pods, pod("p", initContainers=[container("first", **limits(name))])
        )
    claims = [{"name": "device", "resourceClaimName": "his"}]
    template = [{"name": "device", "resourceClaimTemplateName": "his"}]
    tries["a claim"] = Try("POST", pods, pod("p", resourceClaims=claims))
    tries["a claim by a template"] = Try("POST", pods, pod("p", resourceClaims=template))
    for key in (
        "cdi.k8s.io/all",
        "nvidia.cdi.k8s.io/container.main",
        "io.kubernetes.cri-o.Devices",
        "devices.crio.io",
        "devices.nri.io/container.main",
        "cdi-devices.nri.io/container.main",
        "mounts.nri.io/pod",
        "devices.noderesource.dev/container.main",
    ):
        tries[f"the annotation {key}"] = Try("POST", pods, pod("p", annotations={key: "nvidia.com/gpu=all"}))
    held(stage.bob, tries, GPUS)
    his = f"{pods}/his"
    later = {"metadata": {"annotations": {"cdi.k8s.io/all": "nvidia.com/gpu=all"}}}
    held(
        stage.bob,
        {
            "an annotation that comes later": Try("PATCH", his, later),
            "the same by the status": Try("PATCH", f"{his}/status", later),
        },
        PODS_POLICY,
    )
    limited = [
        {"op": "add", "path": "/spec/containers/0/resources", "value": limits("nvidia.com/gpu")["resources"]}
    ]
    refusal = refusal_of(stage.bob, Try("PATCH", f"{his}/resize", limited))
    assert refusal is not None, "a pod is given GPUs later (resize)"


def limit_range(**limits: Object) -> Object:
    return {"metadata": {"name": "another"}, "spec": {"limits": [{"type": "Container", **limits}]}}


@attack("a tenant's limit range gives GPUs to pods that ask for none", needs="cluster")
def by_limit_ranges(target: Target) -> None:
    """Tries limit ranges that give GPUs by default. Pods of Fairlot's jobs would get these GPUs too, but nobody would
    be billed."""
    stage = target.cluster
    at, gpu = RANGES.format(stage.home), {"nvidia.com/mig-1g.5gb": "1"}
    usual = limit_range(default={"cpu": "1"}, defaultRequest={"cpu": "1"}, max={"cpu": "8"})
    passes(stage.bob, {"processors": Try("POST", at, usual)})
    stage.bob.create(at, limit_range(default={"cpu": "1"}))
    try:
        held(
            stage.bob,
            {
                "by limits": Try("POST", at, limit_range(default=gpu, defaultRequest=gpu)),
                "by requests": Try("POST", at, limit_range(defaultRequest={"nvidia.com/gpu": "1"})),
                # If a limit range sets no default, Kubernetes uses the maximum as the default.
                "by a maximum": Try("POST", at, limit_range(max={"nvidia.com/gpu": "8"})),
                "among others": Try("POST", at, limit_range(default={"cpu": "1"} | gpu)),
                "later": Try("PATCH", f"{at}/another", {"spec": limit_range(default=gpu)["spec"]}),
            },
            policy("fairlot-gpus-in-templates"),
        )
    finally:
        stage.bob.delete(f"{at}/another")


def _is_known(stage: Stage, using: Try) -> bool:
    """Returns whether the API server knows the runtime class that the request `using` refers to."""
    return "not found" not in str(refusal_of(stage.bob, using))


@attack("a tenant's controllers and runtime classes get GPUs", needs="cluster")
def by_controllers(target: Target) -> None:
    stage = target.cluster
    exposed = pod("p", container(envFrom=[from_("configMapRef")]))["spec"]
    stage.bob.create(
        JOBS.format(stage.home), changed(own_job("his-own", exposed), "metadata/name", "his-own")
    )

    def made() -> list[Object]:
        return stage.bob.items(PODS.format(stage.home), labelSelector="batch.kubernetes.io/job-name=his-own")

    def came_to_an_end() -> bool:
        events = stage.bob.items(f"/api/v1/namespaces/{stage.home}/events")
        return bool(made()) or any("fairlot-gpus" in event.get("message", "") for event in events)

    wait_for(came_to_an_end, what="the Job controller makes a pod, or is refused it")
    assert not made(), "a Job of his made a pod that sees GPUs"
    stage.bob.delete(f"{JOBS.format(stage.home)}/his-own", propagationPolicy="Background")
    path = "/apis/node.k8s.io/v1/runtimeclasses"
    for name in ("nvidia", "gpu"):
        full = f"{name}-{stage.home}"
        stage.admin.create(path, {"metadata": {"name": full}, "handler": "nvidia"})
        try:
            using = Try("POST", PODS.format(stage.home), pod("p", runtimeClassName=full))
            wait_for(
                partial(_is_known, stage, using),
                what="the runtime class is known",
            )
            held(stage.bob, {full: using}, GPUS)
        finally:
            stage.admin.delete(f"{path}/{full}")
