"""Tests that a gang's Secrets are written for each attempt, deleted with the Job, and unreadable for all other
users."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from scheduling.backends.base import BackendError, CodeArchive, Phase, SecretFolder, Secrets
from scheduling.backends.kubernetes import objects, secret_objects
from scheduling.backends.kubernetes.api import Api as OwnApi
from scheduling.backends.kubernetes.api import Refused as OwnRefused
from scheduling.backends.kubernetes.code_delivery import KEY, PLACE
from scheduling.jobs.code import MOST_IN_PODS
from scheduling.jobs.secrets import create_secret
from scheduling.jobs.submitting import submit_job
from scheduling.jobs.volumes import grant_volume
from scheduling.models import Job
from scheduling.spec.job_spec import JobSpec, SpecError
from tests.cluster.api import JOBS, PODS, Api, Object
from tests.cluster.backend_rig import Rig
from tests.cluster.tenancy import container, pod, refused
from tests.waiting import wait_for

if TYPE_CHECKING:
    from tests.cluster.attached_lab import Lab

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

SECRETS = "/api/v1/namespaces/{}/secrets"
TEXT = "hf_dontTellAnybody"
GIVEN = Secrets({"HF_TOKEN": TEXT}, [SecretFolder("hf", "/secrets/hf", {"token": TEXT})])


@pytest.fixture
def rig(fairlot: Path, admin: Api, tenant: str, tmp_path: Path) -> Iterator[Rig]:
    with ExitStack() as stack:
        made = Rig(admin, fairlot, tenant, tmp_path)
        stack.enter_context(made.watching())
        yield made


def there(rig: Rig) -> dict[str, dict[str, str]]:
    """Maps the names of the namespace's Secrets to their decoded content."""
    return {
        found["metadata"]["name"]: {
            key: base64.b64decode(text).decode() for key, text in found.get("data", {}).items()
        }
        for found in rig.admin.items(SECRETS.format(rig.namespace))
    }


def test_the_largest_code_fits_into_a_secret_that_the_policies_accept(rig: Rig, nodes: list[str]) -> None:
    code = CodeArchive("sha256:x", os.urandom(MOST_IN_PODS))
    gang = rig.start(rig.gang(nodes[0], code=code))
    rig.wait(gang, Phase.RUNNING)
    held = there(rig)[f"{objects.job_name(gang.job_id)}-files-0"]
    assert base64.b64decode(held[KEY]) == code.content
    [one] = rig.pods(gang)
    assert f"{PLACE}/{KEY}" in one["spec"]["containers"][0]["command"]
    rig.stop(gang)


def test_each_attempt_finds_the_present_secrets(rig: Rig, nodes: list[str]) -> None:
    first = rig.start(rig.gang(nodes[0], nodes[1], secrets=GIVEN))
    rig.wait(first, Phase.RUNNING)
    name = objects.job_name(first.job_id)
    assert there(rig) == {f"{name}-variables": {"HF_TOKEN": TEXT}, f"{name}-files-0": {"token": TEXT}}
    for one in rig.pods(first):
        [main] = one["spec"]["containers"]
        assert {
            "name": "HF_TOKEN",
            "valueFrom": {"secretKeyRef": {"name": f"{name}-variables", "key": "HF_TOKEN"}},
        } in main["env"]
        [mount] = [mount for mount in main["volumeMounts"] if mount["mountPath"] == "/secrets/hf"]
        assert mount["readOnly"]
        assert TEXT not in str(one)
    rig.stop(first)
    rig.wait(first)
    other = Secrets({"HF_TOKEN": "new"}, [SecretFolder("hf", "/secrets/hf", {"user": "bob"})])
    second = rig.start(rig.gang(nodes[2], nodes[3], epoch=2, secrets=other))
    rig.wait(second, Phase.RUNNING)
    assert there(rig) == {f"{name}-variables": {"HF_TOKEN": "new"}, f"{name}-files-0": {"user": "bob"}}


def test_they_are_deleted_with_the_job(rig: Rig, nodes: list[str]) -> None:
    gang = rig.start(rig.gang(nodes[0], secrets=GIVEN))
    rig.wait(gang, Phase.RUNNING)
    rig.stop(gang)
    rig.wait(gang)
    rig.backend.remove_files(job_id=gang.job_id)
    wait_for(lambda: not there(rig), what="its secrets are gone", every=0.2)


def test_a_late_start_does_not_restore_older_secrets(rig: Rig, own: OwnApi, nodes: list[str]) -> None:
    gang = rig.start(rig.gang(nodes[0], epoch=7, secrets=GIVEN))
    rig.wait(gang, Phase.RUNNING)
    job = rig.admin.get(f"{JOBS.format(rig.namespace)}/{objects.job_name(gang.job_id)}")
    older = Secrets({"HF_TOKEN": "old"})
    with pytest.raises(OwnRefused, match="already written for a later attempt"):
        secret_objects.write(own, rig.namespace, job, older, annotations={objects.EPOCH: "6"})
    again = Secrets({"HF_TOKEN": "again"})
    secret_objects.write(own, rig.namespace, job, again, annotations={objects.EPOCH: "7"})
    assert there(rig)[f"{objects.job_name(gang.job_id)}-variables"] == {"HF_TOKEN": "again"}


def test_a_refusal_of_the_api_server_is_reported_without_the_secret(
    rig: Rig, admin: Api, nodes: list[str]
) -> None:
    """Proves that Fairlot reports a refused Secret without its content, which the API server's error message would
    quote."""
    bad = Secrets(folders=[SecretFolder("hf", "/secrets/hf", {"not a key": TEXT})])
    with pytest.raises(BackendError) as told:
        rig.start(rig.gang(nodes[0], secrets=bad))
    assert "could not be written" in str(told.value)
    assert TEXT not in str(told.value)
    quota = {"metadata": {"name": "no-secrets"}, "spec": {"hard": {"secrets": "0"}}}
    path = f"/api/v1/namespaces/{rig.namespace}/resourcequotas"
    admin.create(path, quota)
    wait_for(lambda: admin.get(f"{path}/no-secrets").get("status", {}).get("used"), what="the quota counts")
    with pytest.raises(BackendError, match="exceeded quota: no-secrets"):
        rig.start(rig.gang(nodes[0], job=2, secrets=GIVEN))
    assert rig.admin.get(f"{JOBS.format(rig.namespace)}/{objects.job_name(2)}")["spec"]["suspend"], "it waits"


# --- who may not touch them -------------------------------------------------------------------------------


def owned(name: str, **more: Any) -> Object:
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": "gang",
        "uid": "4b7c8e7e-0000-0000-0000-000000000000",
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "labels": {objects.JOB: "1"}, "ownerReferences": [owner]},
        **more,
    }


def test_no_one_else_can_create_or_change_one(rig: Rig, bob: Api, nodes: list[str]) -> None:
    gang = rig.start(rig.gang(nodes[0], secrets=GIVEN))
    rig.wait(gang, Phase.RUNNING)
    path = SECRETS.format(rig.namespace)
    theirs = f"{path}/{objects.job_name(gang.job_id)}-variables"
    by = "fairlot-secrets"
    refused(lambda: bob.create(path, owned("fairlot-mine")), "written only by Fairlot", by=by)
    refused(lambda: bob.merge(theirs, {"stringData": {"HF_TOKEN": "his"}}), "only by Fairlot", by=by)
    taken = {"metadata": {"labels": {objects.JOB: None}}}
    refused(lambda: bob.merge(theirs, taken), "only by Fairlot", by=by)
    bob.create(path, {"metadata": {"name": "his"}, "stringData": {"a": "b"}})
    bob.merge(f"{path}/his", {"stringData": {"a": "c"}})
    refused(lambda: bob.merge(f"{path}/his", {"metadata": {"labels": {objects.JOB: "1"}}}), by=by)


def test_fairlot_itself_cannot_write_others(bob: Api, own: OwnApi, tenant: str) -> None:
    path = SECRETS.format(tenant)
    bob.create(path, {"metadata": {"name": "his"}, "stringData": {"a": "b"}})
    with pytest.raises(OwnRefused, match="may only write the secrets of its jobs"):
        own.replace(f"{path}/his", owned("his"))
    for wrong in (
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "plain"}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x", "labels": {objects.JOB: "1"}}},
    ):
        with pytest.raises(OwnRefused, match="may only write the secrets of its jobs"):
            own.create(path, wrong)


REFERENCES: dict[str, Object] = {
    "by a variable": pod(
        "x",
        container(
            env=[{"name": "T", "valueFrom": {"secretKeyRef": {"name": "fairlot-x-variables", "key": "T"}}}]
        ),
    ),
    # A prefix makes the variables acceptable for the policy on GPUs, so that only the policy on secrets can refuse this
    # pod.
    "by all variables": pod(
        "x", container(envFrom=[{"prefix": "X", "secretRef": {"name": "fairlot-x-variables"}}])
    ),
    "in an init container": pod(
        "x",
        initContainers=[
            container("first", envFrom=[{"prefix": "X", "secretRef": {"name": "fairlot-x-variables"}}])
        ],
    ),
    "by a volume": pod("x", volumes=[{"name": "v", "secret": {"secretName": "fairlot-x-files-0"}}]),
    "by a projected volume": pod(
        "x", volumes=[{"name": "v", "projected": {"sources": [{"secret": {"name": "fairlot-x-files-0"}}]}}]
    ),
    "to pull an image": pod("x", imagePullSecrets=[{"name": "fairlot-x-image"}]),
}


@pytest.mark.parametrize("how", REFERENCES)
def test_only_the_jobs_own_pods_can_use_one(bob: Api, tenant: str, how: str) -> None:
    refused(
        lambda: bob.create(PODS.format(tenant), REFERENCES[how]),
        "are only for those jobs",
        by="fairlot-secrets-in-pods",
    )


def test_a_pod_may_use_other_secrets_of_the_namespace(bob: Api, tenant: str) -> None:
    his = [{"name": "v", "secret": {"secretName": "his"}}]
    no_gpu = [
        {"name": f"{runtime}_VISIBLE_DEVICES", "value": "void"}
        for runtime in ("NVIDIA", "AMD", "ASCEND", "HABANA")
    ]
    of_it = container(env=no_gpu, envFrom=[{"secretRef": {"name": "his"}}])
    bob.create(PODS.format(tenant), pod("x", of_it, volumes=his))


# --- from the submission to the pod ------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_job_gets_the_secrets_that_its_owner_named(lab: Lab) -> None:
    """Proves that a submitted job's container gets the secrets and volumes that the job's owner named.

    A user of another team cannot submit a job that names the same secrets.
    """
    bob, astro = lab.people.bob, lab.people.astro
    create_secret(actor=bob, name="hf-token", values={"value": TEXT})
    grant_volume(actor=lab.people.olga, cluster=lab.cluster, name="sky", source="sky-claim", tenant=astro)
    fields = {"name": "x", "command": "true", "environment": "example/train"}
    brings = {"secrets": {"HF_TOKEN": "hf-token"}, "volumes": [{"name": "sky"}]}
    spec = JobSpec.parse(fields | {"secrets": brings["secrets"]})
    with pytest.raises(SpecError) as refused:
        submit_job(actor=lab.people.charlie, tenant=lab.people.bio, cluster=lab.cluster, spec=spec)
    assert refused.value.problems == {"secrets": "neither you nor Bio has a secret named hf-token"}
    first = submit_job(actor=bob, tenant=astro, cluster=lab.cluster, spec=JobSpec.parse(fields))
    lab.fill()
    lab.reaches(first, Job.State.RUNNING)  # the first job's start creates the team's namespace
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    made = {"metadata": {"name": "sky-claim"}, "spec": claim}
    lab.admin.create(f"/api/v1/namespaces/{lab.home(first)}/persistentvolumeclaims", made)
    job = submit_job(actor=bob, tenant=astro, cluster=lab.cluster, spec=JobSpec.parse(fields | brings))
    lab.fill()
    lab.until(lambda: lab.pods(job), lambda: f"it has a pod, not {lab.story(job)}")
    [one] = lab.pods(job)
    [main] = one["spec"]["containers"]
    name = f"{objects.job_name(job.pk)}-variables"
    held = lab.admin.get(f"{SECRETS.format(lab.home(job))}/{name}")
    assert base64.b64decode(held["data"]["HF_TOKEN"]).decode() == TEXT
    assert name in str(main["env"])
    mounts = {mount["mountPath"]: mount.get("readOnly", False) for mount in main["volumeMounts"]}
    assert mounts["/volumes/sky"] is True
    # A node has 128 processors and 1 TiB of memory for its eight GPUs, of which the job gets its GPUs' share.
    assert main["resources"]["requests"] == main["resources"]["limits"]
    assert main["resources"]["limits"]["cpu"] == "14400m"
    assert main["resources"]["limits"]["memory"] == str(int(2**40 * 0.9 / 8))
