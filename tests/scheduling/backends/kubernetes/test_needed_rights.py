"""The rights that Fairlot checks in a cluster are exactly those that the manifests grant."""

from __future__ import annotations

from pathlib import Path

import yaml

from scheduling.backends.kubernetes.rights import EVERYWHERE, IN_TEAMS, OPTIONAL, TENANT_ROLE, Need, needed

RBAC = Path(__file__).resolve().parents[4] / "deploy" / "kubernetes" / "rbac.yaml"
# Verb, API group, resource, and the name of the only object that may be used ("" for all objects).
Granted = tuple[str, str, str, str]


def granted(role: str) -> list[Granted]:
    """Returns each right that the manifests' ClusterRole of this name grants."""
    documents = yaml.safe_load_all(RBAC.read_text())
    (rules,) = [
        found["rules"]
        for found in documents
        if (found["kind"], found["metadata"]["name"]) == ("ClusterRole", role)
    ]
    return [
        (verb, group, resource, name)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    ]


def asked(needs: tuple[Need, ...]) -> list[Granted]:
    return [
        (right.verb, right.group, right.resource, right.name) for need in needs for right in need.rights()
    ]


def test_the_role_for_the_whole_cluster_grants_exactly_the_needed_rights() -> None:
    assert sorted(granted("fairlot")) == sorted(asked(EVERYWHERE))


def test_the_role_for_teams_namespaces_grants_exactly_the_needed_rights() -> None:
    assert sorted(granted(TENANT_ROLE)) == sorted(asked(IN_TEAMS))


def test_only_what_no_job_needs_is_optional() -> None:
    assert {key.partition(" ")[2] for key in OPTIONAL} == {"podgroups.scheduling.k8s.io of a team"}
    assert {right.key for right in needed(in_teams=True)} > OPTIONAL


def test_every_right_has_its_own_name() -> None:
    keys = [right.key for right in needed(in_teams=True)]
    assert len(keys) == len(set(keys)) == len(asked(EVERYWHERE)) + len(asked(IN_TEAMS))
