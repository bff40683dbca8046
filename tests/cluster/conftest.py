"""Fixtures: one control plane with twenty nodes for all tests of this folder, and a namespace for each test."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from django.conf import LazySettings

from scheduling.backends.kubernetes import namespaces
from scheduling.backends.kubernetes.api import Api as OwnApi
from tests.cluster import deployed, machine
from tests.cluster.api import JOBS, Api
from tests.cluster.controlplane import ControlPlane, control_plane
from tests.cluster.emptying import remove
from tests.cluster.jobs import Work
from tests.cluster.lossy import Lossy
from tests.cluster.nodes import V100
from tests.cluster.realnode import RealNode
from tests.cluster.stage import GENEROUS, ISOLATION, PEOPLE
from tests.cluster.tenancy import answer
from tests.waiting import wait_for

if TYPE_CHECKING:
    from tests.cluster.attached_lab import Lab


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the tests that share a control plane into three xdist groups, which have a control plane each: tests that
    need a real node, tests that attach the cluster to a Fairlot with a database, and all others."""
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if "plane" in fixtures:
            attached = item.get_closest_marker("django_db") is not None
            group = "node" if "real_node" in fixtures else "attached" if attached else "cluster"
            item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session")
def plane() -> Iterator[ControlPlane]:
    with control_plane("cluster", users=PEOPLE) as running:
        yield running


@pytest.fixture(scope="session")
def nodes(plane: ControlPlane) -> list[str]:
    """Returns the names of fifteen nodes with A100s and five with V100s, eight GPUs each."""
    return plane.add_nodes(15) + plane.add_nodes(5, prefix="old", product=V100)


@pytest.fixture(scope="session")
def real_node(plane: ControlPlane) -> Iterator[RealNode]:
    """Yields a node that runs containers. Tests that use it are skipped on machines that cannot run such a node."""
    try:
        machine.prepare()
    except machine.Unfit as unfit:
        pytest.skip(str(unfit))
    with RealNode(plane).started() as node:
        yield node


@pytest.fixture
def admin(plane: ControlPlane) -> Api:
    return plane.admin


@pytest.fixture(scope="session")
def fairlot(plane: ControlPlane) -> Path:
    """Returns the kubeconfig of Fairlot's own service account, which has exactly the rights of deploy/kubernetes."""
    deployed.install(plane)
    return plane.kubeconfig(deployed.FAIRLOT)


@pytest.fixture(scope="session")
def own(fairlot: Path) -> Iterator[OwnApi]:
    """Yields Fairlot's client, signed in with Fairlot's own service account."""
    api = OwnApi(yaml.safe_load(fairlot.read_text()))
    yield api
    api.close()


@pytest.fixture
def network(plane: ControlPlane) -> Iterator[Lossy]:
    """Yields an admin's API client that can lose requests and responses when a test asks for it."""
    api = Lossy(yaml.safe_load(plane.kubeconfig("test-admin").read_text()))
    yield api
    api.close()


@pytest.fixture
def tenant(admin: Api, own: OwnApi) -> Iterator[str]:
    """Yields a team's namespace, which Fairlot has created with a quota of a hundred GPUs."""
    name = namespaces.ensure(own, secrets.randbelow(10**9), ISOLATION, cluster="tests")
    yield name
    remove(admin, name)


@pytest.fixture
def bob(plane: ControlPlane, tenant: str) -> Api:
    """Returns the client of a team's user, who has all rights in the team's namespace that RBAC can grant."""
    plane.admin.apply(GENEROUS.format(namespace=tenant))
    api = plane.api("bob")
    wait_for(lambda: not answer(lambda: api.items(JOBS.format(tenant))), what="his rights")
    return api


@pytest.fixture
def namespace(admin: Api) -> Iterator[str]:
    name = f"test-{secrets.token_hex(4)}"
    admin.create("/api/v1/namespaces", {"metadata": {"name": name}})
    # Pods are refused until the controller manager has created their service account.
    wait_for(lambda: admin.items(f"/api/v1/namespaces/{name}/serviceaccounts"), what="an account")
    admin.create(f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": namespaces.JOB_ACCOUNT}})
    yield name
    remove(admin, name)


@pytest.fixture
def work(admin: Api, namespace: str, nodes: list[str]) -> Work:
    """Returns a helper that manages Jobs in the test's namespace. Depends on `nodes`, so that nodes exist."""
    return Work(admin, namespace)


@pytest.fixture
def lab(settings: LazySettings, tmp_path: Path, fairlot: Path, admin: Api, nodes: list[str]) -> Iterator[Lab]:
    """Yields a Fairlot environment to which this control plane is attached as a cluster."""
    from tests.cluster.attached_lab import attached_lab  # noqa: PLC0415 - models need settings, which come later

    settings.FAIRLOT_JOBS_DIR = tmp_path
    with attached_lab(deployed.flattened(fairlot), admin) as made:
        yield made
