"""The manifests in deploy/kubernetes are correct, as far as tests without a cluster can check this."""

from __future__ import annotations

import copy
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from scheduling.backends.kubernetes import namespaces, rights

FOLDER = Path(__file__).resolve().parents[4] / "deploy" / "kubernetes"
FILES = sorted(FOLDER.glob("*.yaml"))
DOCUMENTS = [made for path in FILES for made in yaml.safe_load_all(path.read_text())]
ACCOUNT = f"system:serviceaccount:{namespaces.HOME}:{namespaces.ACCOUNT}"
POLICIES = [made for made in DOCUMENTS if made["kind"] == "ValidatingAdmissionPolicy"]

# verb, API group, resource, and the name of the only object that may be used ("" for all objects)
Grant = tuple[str, str, str, str]


def named(kind: str, name: str) -> Any:
    [found] = (made for made in DOCUMENTS if (made["kind"], made["metadata"]["name"]) == (kind, name))
    return found


def granted(role: str) -> set[Grant]:
    return {
        (verb, group, resource, name)
        for rule in named("ClusterRole", role)["rules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
    }


def test_no_right_is_a_blank_cheque() -> None:
    for role in ("fairlot", namespaces.ROLE):
        for verb, group, resource, name in granted(role):
            assert "*" not in (verb, group, resource)
            assert verb in {"get", "list", "watch", "create", "update", "patch", "delete", "bind"}
            assert (verb == "bind") == bool(name), "the one right that is of one object"


def test_every_right_has_a_reason() -> None:
    lines = (FOLDER / "rbac.yaml").read_text().splitlines()
    rules = [number for number, line in enumerate(lines) if line.startswith("  - apiGroups:")]
    assert len(rules) > 15
    for number in rules:
        assert lines[number - 1].startswith("  # "), lines[number + 1]


def test_the_account_is_the_one_that_roles_and_policies_name() -> None:
    account = named("ServiceAccount", namespaces.ACCOUNT)
    assert account["metadata"]["namespace"] == namespaces.HOME
    [subject] = named("ClusterRoleBinding", "fairlot")["subjects"]
    assert (subject["name"], subject["namespace"]) == (namespaces.ACCOUNT, namespaces.HOME)
    for path in FILES:
        accounts = re.findall(r"system:serviceaccount:[\w-]+:[\w-]+", path.read_text())
        assert {name for name in accounts if ":kube-system:" not in name} <= {ACCOUNT}, path.name


@pytest.mark.parametrize("policy", POLICIES, ids=lambda made: made["metadata"]["name"])
def test_a_policy_is_in_force_holds_when_it_cannot_be_judged_and_says_why(policy: Any) -> None:
    name = policy["metadata"]["name"]
    binding = named("ValidatingAdmissionPolicyBinding", name)["spec"]
    assert (binding["policyName"], binding["validationActions"]) == (name, ["Deny"])
    spec = policy["spec"]
    assert spec["failurePolicy"] == "Fail"
    for validation in spec["validations"]:
        assert len(validation["message"]) > 30
        assert validation["reason"] == "Forbidden"
    # Policies match only the namespaces of tenants, so that a mistake in a policy cannot stop the rest of the cluster.
    only_tenants = {"matchExpressions": [{"key": namespaces.TENANT, "operator": "Exists"}]}
    if name == "fairlot-namespaces":
        assert spec["matchConstraints"]["objectSelector"] == only_tenants
    elif name in (
        "fairlot-account",
        "fairlot-services",
        "fairlot-work",
        "fairlot-deletes",
    ):  # these policies match requests of Fairlot's own account, in every namespace
        [condition] = spec["matchConditions"]
        assert condition["expression"] == f'request.userInfo.username == "{ACCOUNT}"'
    else:
        assert spec["matchConstraints"]["namespaceSelector"] == only_tenants


def test_deleting_is_refused_to_fairlot_alone() -> None:
    """The admission policies restrict only deletes by Fairlot itself.

    So others can delete a namespace with all its contents, and people may delete what RBAC allows them.
    """
    for policy in POLICIES:
        for rule in policy["spec"]["matchConstraints"]["resourceRules"]:
            if policy["metadata"]["name"] == "fairlot-deletes":
                assert rule["operations"] == ["DELETE"]
            else:
                assert set(rule["operations"]) <= {"CREATE", "UPDATE"}


def test_no_right_lets_it_read_a_secret() -> None:
    """Fairlot may only create and update Secrets. A right to patch would let Fairlot read them, because the response
    has the whole object."""
    for role in ("fairlot", namespaces.ROLE):
        verbs = {verb for verb, _, resource, _ in granted(role) if resource.startswith("secrets")}
        assert verbs <= {"create", "update"}


def test_policies_bear_the_version_that_a_check_asks_for_and_it_grows_with_every_change() -> None:
    """A change of an admission policy requires three things: a greater `rights.POLICIES_VERSION`, the same version in
    the policies' labels, and the new digest in this test.

    A message may change without a new version, because it does not change what the policies decide.
    """
    assert {policy["metadata"]["name"] for policy in POLICIES} == rights.POLICIES
    versions = {policy["metadata"]["labels"]["app.kubernetes.io/version"] for policy in POLICIES}
    assert versions == {str(rights.POLICIES_VERSION)}
    specs = [[policy["metadata"]["name"], copy.deepcopy(policy["spec"])] for policy in POLICIES]
    for _, spec in specs:
        for validation in spec["validations"]:
            del validation["message"]
    digest = hashlib.sha256(json.dumps(specs, sort_keys=True).encode()).hexdigest()[:16]
    assert (rights.POLICIES_VERSION, digest) == (2, "b195b03afb9817a1")


def test_kustomize_takes_all_files_and_kubectl_apply_f_all_but_its_own() -> None:
    listed = yaml.safe_load((FOLDER / "Kustomization").read_text())["resources"]
    assert listed == [path.name for path in FILES]
    assert {path.name for path in FOLDER.iterdir()} == {*listed, "Kustomization"}
    # kubectl applies the files in this order: the namespace must come before its contents, and policies before rights.
    assert (listed[0], listed[-1]) == ("account.yaml", "rbac.yaml")
