"""Applies deploy/kubernetes as a cluster's administrator would, and names the service account that it creates for
Fairlot."""

from __future__ import annotations

import base64
from pathlib import Path

import yaml

from tests.cluster.api import NODES, PODS, Object, Refused
from tests.cluster.controlplane import ControlPlane
from tests.cluster.tenancy import pod as pod_of
from tests.waiting import wait_for

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
FAIRLOT = "system:serviceaccount:fairlot:fairlot"
PROBED = "probe-of-policies"


def manifests() -> list[Object]:
    """Returns the objects of deploy/kubernetes in the order in which `kubectl apply -f` creates them."""
    listed = (yaml.safe_load_all(path.read_text()) for path in sorted(FOLDER.glob("*.yaml")))
    return [document for documents in listed for document in documents]


def install(plane: ControlPlane) -> None:
    """Applies the manifests and waits until they are in force."""
    for document in manifests():
        plane.admin.apply_one(document)
    wait_for(lambda: has_its_rights(plane), what="Fairlot's account has its rights")
    labels = {"fairlot.io/tenant": "0"}
    plane.admin.create("/api/v1/namespaces", {"metadata": {"name": PROBED, "labels": labels}})
    # The API server loads policies in the order of their arrival, so all are in force once the last one is.
    last = [made["metadata"]["name"] for made in manifests() if made["kind"] == "ValidatingAdmissionPolicy"][
        -1
    ]
    assert last == "fairlot-secrets-in-pods", "which is the one that the probe below meets"
    wait_for(lambda: last in refusal_of_a_thief(plane), what="the policies are in force")
    plane.admin.delete(f"/api/v1/namespaces/{PROBED}")


def has_its_rights(plane: ControlPlane) -> bool:
    try:
        plane.api(FAIRLOT).items(NODES)
    except Refused:
        return False
    return True


def refusal_of_a_thief(plane: ControlPlane) -> str:
    pod = pod_of("thief", imagePullSecrets=[{"name": "fairlot-none"}])
    try:
        plane.admin.create(f"{PODS.format(PROBED)}?dryRun=All", pod)
    except Refused as refused:
        return refused.message
    return ""


def flattened(kubeconfig: Path) -> str:
    """Returns the kubeconfig as `kubectl config view --raw --flatten` prints it, with the certificate inlined."""
    content = yaml.safe_load(kubeconfig.read_text())
    cluster = content["clusters"][0]["cluster"]
    authority = Path(cluster.pop("certificate-authority")).read_bytes()
    cluster["certificate-authority-data"] = base64.b64encode(authority).decode()
    text: str = yaml.safe_dump(content)
    return text
