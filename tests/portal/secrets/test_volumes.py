"""Volumes and worker resources are granted to teams, offered, refused and withdrawn, on pages and in the API."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from accounting.models import AuditEvent
from portal.api.api import api as documented
from portal.submit.fields import Fields
from scheduling.backends.local.isolation import Isolation
from scheduling.models import Cluster, ClusterAccess, Job, Node, Volume
from scheduling.spec.job_spec import NEW_NAMES, JobSpec
from tests.portal.scene import Scene


@pytest.fixture
def kubernetes(scene: Scene) -> Cluster:
    """Returns a Kubernetes cluster with two A100s. It exists only in the database."""
    cluster = Cluster.objects.create(name="kubernetes", backend=Cluster.Backend.KUBERNETES)
    ClusterAccess.objects.create(cluster=cluster, sealed_kubeconfig=b"x", server="https://x")
    Node.objects.create(
        cluster=cluster, name="gpu-1", generation=scene.people.a100, gpus=2, cpus=32.0, memory=64 * 2**30
    )
    return cluster


def api(browser: Client, method: str, path: str, **body: Any) -> Any:
    return browser.generic(method, f"/api/v1{path}", json.dumps(body), content_type="application/json")


def test_an_operator_grants_a_claim_and_withdraws_it(
    scene: Scene, browser_of: Any, kubernetes: Cluster
) -> None:
    browser = browser_of(scene.people.olga)
    form = {
        "name": "imagenet",
        "source": "imagenet-2012",
        "team": str(scene.people.astro.pk),
        "read_only": "on",
    }
    url = reverse("admin_cluster_volume_grant", args=[kubernetes.pk])
    shown = browser.post(url, form, follow=True).content.decode()
    assert "The volume imagenet has been granted." in shown
    assert "imagenet-2012" in shown
    volume = Volume.objects.get(name="imagenet")
    assert (volume.tenant, volume.read_only) == (scene.people.astro, True)
    again = browser.post(url, form)
    assert (again.status_code, "Withdraw that volume before" in again.content.decode()) == (422, True)
    shown = browser.post(
        reverse("admin_cluster_volume_withdraw", args=[kubernetes.pk, volume.pk]), follow=True
    ).content.decode()
    assert "The volume imagenet has been withdrawn." in shown
    assert not Volume.objects.filter(name="imagenet").exists()
    event = AuditEvent.objects.get(verb="volume.grant")
    assert event.after == {
        "cluster": "kubernetes",
        "source": "imagenet-2012",
        "read_only": True,
        "for": "Astro",
    }


def test_a_wrong_grant_says_why_beside_its_field(
    scene: Scene, browser_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Isolation(users=True, namespaces=False, why_no_namespaces="the kernel is too old")
    monkeypatch.setattr("scheduling.jobs.volumes.isolation_in", lambda cluster: found)
    browser = browser_of(scene.people.ada)
    url = reverse("admin_cluster_volume_grant", args=[scene.world.cluster.pk])
    for form, said in (
        ({"name": "x", "source": "claim", "read_only": "off"}, "absolute path of an existing folder"),
        ({"name": "x", "source": str(tmp_path), "read_only": "on"}, "the kernel is too old"),
        ({"name": "No Name", "source": str(tmp_path), "read_only": "off"}, "lower-case letters"),
        (
            {"name": "x", "source": str(tmp_path), "read_only": "off", "team": "99"},
            "Choose an option from the list",
        ),
    ):
        response = browser.post(url, form)
        assert (response.status_code, said in response.content.decode()) == (422, True), form
    assert Volume.objects.count() == 1


def test_only_operators_grant_or_withdraw_volumes(scene: Scene, browser_of: Any) -> None:
    cluster = scene.world.cluster
    for who in (scene.people.alice, scene.people.charlie):
        browser = browser_of(who)
        for url in (
            reverse("admin_cluster_volume_grant", args=[cluster.pk]),
            reverse("admin_cluster_volume_withdraw", args=[cluster.pk, scene.volume.pk]),
        ):
            assert browser.post(url, {"name": "x", "source": "/tmp"}).status_code == 404
        assert api(browser, "POST", "/clusters/lab/volumes", name="x", source="/tmp").status_code == 404
        assert api(browser, "DELETE", f"/clusters/lab/volumes/{scene.volume.pk}").status_code == 404
    assert Volume.objects.count() == 1


def test_the_api_grants_lists_and_withdraws(scene: Scene, browser_of: Any, kubernetes: Cluster) -> None:
    olga = browser_of(scene.people.olga)
    made = api(olga, "POST", "/clusters/kubernetes/volumes", name="sky", source="sky-claim", team="bio")
    assert (made.status_code, made.json()["source"], made.json()["read_only"]) == (201, "sky-claim", True)
    one = f"/clusters/kubernetes/volumes/{made.json()['id']}"
    seen = {
        who.username: [found["name"] for found in browser_of(who).get("/api/v1/volumes").json()]
        for who in (scene.people.bob, scene.people.charlie, scene.people.olga)
    }
    assert seen == {"bob": ["supernova-sky"], "charlie": ["sky"], "olga": ["sky", "supernova-sky"]}
    assert "source" not in browser_of(scene.people.charlie).get("/api/v1/volumes").json()[0]
    wrong = api(olga, "POST", "/clusters/kubernetes/volumes", name="x", source="/host/path")
    assert (wrong.status_code, list(wrong.json()["problems"])) == (409, ["source"])
    assert api(olga, "DELETE", f"/clusters/lab/volumes/{made.json()['id']}").status_code == 404
    assert api(olga, "DELETE", one).status_code == 204
    assert api(olga, "DELETE", one).status_code == 404


def submitted(browser: Client, cluster: Cluster, fields: Fields) -> Any:
    form = {**fields.__dict__, "yaml": fields.to_yaml(), "cluster": str(cluster.pk), "agreed": ""}
    return browser.post(reverse("submit"), form)


def test_the_form_offers_what_the_team_may_use_where_the_job_goes(
    scene: Scene, browser_of: Any, kubernetes: Cluster
) -> None:
    Volume.objects.create(cluster=kubernetes, name="imagenet", source="imagenet-2012")
    browser = browser_of(scene.people.bob)
    wrong = submitted(browser, kubernetes, Fields(name="x", command="x", environment="x", volumes="nope"))
    page = wrong.content.decode()
    assert re.search(r'value="imagenet"><span>imagenet <span class="muted small">read-only</span>', page)
    assert re.search(
        r'value="nope" checked><span>nope <span class="bad small">not available to you</span>', page
    )
    assert "nope is not granted to Astro in kubernetes; available volumes: imagenet" in page
    assert 'id="shm"' in page
    fields = Fields(
        name="brings it", command="true", environment="example/train", volumes="imagenet=/data/imagenet",
        cpu="4", memory="16Gi", shm="1Gi", user_id="2000", image_pull_policy="Always",
    )  # fmt: skip
    assert submitted(browser, kubernetes, fields).status_code == 302
    job = Job.objects.get(name="brings it")
    spec = JobSpec.parse(job.spec)
    assert [(one.name, one.place) for one in spec.volumes] == [("imagenet", "/data/imagenet")]
    assert (spec.cpu, spec.memory, spec.user_id, spec.group_id) == (4.0, "16Gi", 2000, None)
    assert Fields.from_spec(spec) == fields, "a clone shows it again"


def test_resources_that_no_node_has_are_refused_beside_their_field(
    scene: Scene, browser_of: Any, kubernetes: Cluster
) -> None:
    fields = Fields(name="x", command="x", environment="x", cpu="33", memory="65Gi")
    response = submitted(browser_of(scene.people.bob), kubernetes, fields)
    assert response.status_code == 422
    page = response.content.decode()
    assert "No node with an accepted GPU type has more than 32 CPUs" in page
    assert "No node with an accepted GPU type has more than 64.0Gi" in page


def test_a_posted_pod_is_refused_by_the_names_of_its_fields(scene: Scene, browser_of: Any) -> None:
    pod = {"hostNetwork": True, "containers": [{"name": "main", "securityContext": {"privileged": True}}]}
    spec = {"name": "x", "command": "x", "template": {"spec": pod}}
    answer = api(browser_of(scene.people.bob), "POST", "/jobs", spec=spec, cluster="lab")
    assert answer.status_code == 422
    problems = answer.json()["problems"]
    assert "never allowed" in problems["template.spec.hostNetwork"]
    assert "root on the node" in problems["template.spec.containers[0].securityContext.privileged"]


def test_the_api_describes_every_field_that_a_spec_has(scene: Scene) -> None:
    schema = documented.get_openapi_schema(path_params={})["components"]["schemas"]["NewJob"]
    [of_mapping, of_yaml] = schema["properties"]["spec"]["anyOf"]
    assert set(of_mapping["properties"]) == set(JobSpec.model_fields) | set(NEW_NAMES)
    assert of_mapping["additionalProperties"] is False
    assert of_yaml["type"] == "string"


def test_an_admin_sets_what_gpus_bring_with_them(scene: Scene, browser_of: Any, kubernetes: Cluster) -> None:
    browser = browser_of(scene.people.ada)
    assert 'name="memory_limit_per_gpu"' in browser.get(reverse("admin_settings")).content.decode()
    form = {
        "ordering": "stride", "slicing": "checkpoint", "quantum_seconds": "60", "min_hold_seconds": "0",
        "overhead_limit": "5", "cpu_per_gpu": "8", "memory_per_gpu": "", "cpu_limit_per_gpu": "16",
        "memory_limit_per_gpu": "64.5",
    }  # fmt: skip
    url = reverse("admin_settings_change", args=[kubernetes.pk])
    assert browser.post(url, form).status_code == 302
    kubernetes.refresh_from_db()
    set_to = [kubernetes.cpu_per_gpu, kubernetes.memory_per_gpu, kubernetes.cpu_limit_per_gpu]
    assert [*set_to, kubernetes.memory_limit_per_gpu] == [8.0, None, 16.0, 64.5]
    wrong = browser.post(url, form | {"cpu_limit_per_gpu": "0"})
    assert (wrong.status_code, "0.1 to 1\xa0024 CPUs per GPU" in wrong.content.decode()) == (422, True)
