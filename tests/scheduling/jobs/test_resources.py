"""Workers get the CPU cores and memory that they request. Without a request, they get a share of their node in
proportion to their GPUs.

The limits of the cluster apply in both cases.
"""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from scheduling.backends.base import BackendError, Container
from scheduling.backends.kubernetes import objects
from scheduling.clusters.actions import CHANGEABLE, update_cluster
from scheduling.execution.operations import describe_gang
from scheduling.jobs.resources import GIB, ONLY_IN_CONTAINERS, machines, room_for
from scheduling.jobs.secrets import create_secret, secrets_of
from scheduling.models import Cluster, ClusterAccess, Job, Node
from scheduling.spec import pod_fields
from scheduling.spec.attachments import read_bytes
from scheduling.spec.job_spec import JobSpec, SpecError
from tests.scheduling.world import World, world


@pytest.fixture
def lab(transactional_db: None) -> World:
    """Returns a world with a V100 and an A100 node; the V100 node has fewer cores and less memory per GPU."""
    made = world(v100=4, a100=8, backend=Cluster.Backend.KUBERNETES)
    made.cluster.nodes.filter(gpus=4).update(cpus=20.0, memory=100 * GIB)
    made.cluster.nodes.filter(gpus=8).update(cpus=128.0, memory=1000 * GIB)
    return made


def submit(lab: World, **fields: Any) -> Job:
    return lab.submit(lab.people.bob, lab.people.astro, environment="example/train", **fields)


def given_to(lab: World, **fields: Any) -> Container:
    """Submits a job, starts it, and returns the container with the resources of its workers."""
    job = submit(lab, **fields)
    lab.fill()
    return describe_gang(lab.lease(job), JobSpec.parse(job.spec), 1000).container


# --- of its node -------------------------------------------------------------------------------------------


def test_default_resources_are_the_gpus_part_of_the_smallest_node(lab: World) -> None:
    anywhere = given_to(lab)
    assert (anywhere.cpus, anywhere.memory) == (
        4.5,
        int(22.5 * GIB),
    )  # a quarter of the V100 node's resources, minus a tenth
    assert anywhere.shared_memory == int(22.5 * GIB) // 2
    there = given_to(lab, generations=["A100"], gpus=2)
    assert (there.cpus, there.memory) == (28.8, 225 * GIB)


def test_as_many_workers_as_a_node_has_gpus_for_find_room_there(lab: World) -> None:
    for node in lab.cluster.nodes.all():
        for gpus in range(1, node.gpus + 1):
            spec = JobSpec(name="x", command="x", gpus_per_worker=gpus)
            room = room_for(lab.cluster, spec, machines(lab.cluster.nodes.filter(pk=node.pk), spec))
            workers = node.gpus // gpus
            assert room.cpus is not None
            assert room.memory is not None
            assert workers * room.cpus < node.cpus
            assert workers * room.memory < node.memory


def test_nothing_is_promised_of_nodes_of_which_nothing_is_known(lab: World) -> None:
    Node.objects.filter(gpus=8).update(cpus=None, memory=None)
    assert given_to(lab) == Container()
    assert given_to(lab, generations=["V100"]).cpus == 4.5


def test_what_a_job_or_its_cluster_says_counts(lab: World) -> None:
    limits = {"cpu_per_gpu": 2.0, "memory_per_gpu": 8.0}
    lab.cluster = update_cluster(actor=lab.people.ada, cluster=lab.cluster, **limits)
    by_cluster = given_to(lab, gpus=2)
    assert (by_cluster.cpus, by_cluster.memory) == (4.0, 16 * GIB)
    by_job = given_to(lab, cpu=1.5, memory="3Gi", shm="1Gi", working_directory="/srv", user_id=7, group_id=8)
    assert by_job == Container(1.5, 3 * GIB, GIB, "/srv", 7, 8)
    shared = given_to(lab, shm="12Gi")
    assert (shared.memory, shared.shared_memory) == (12 * GIB, 12 * GIB)


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"cpu": 129}, "cpu", "more than 128 CPUs"),
        ({"cpu": 21, "generations": ["V100"]}, "cpu", "more than 20 CPUs"),
        ({"cpu": 21, "gpus": 4, "generations": ["V100"]}, "cpu", "more than 20 CPUs"),
        ({"memory": "1001Gi"}, "memory", "more than 1000.0Gi"),
        ({"memory": "2T"}, "memory", "no node with an accepted GPU type has more than"),
        ({"shm": "1001Gi"}, "shm", "more than 1000.0Gi"),
    ],
)
def test_resources_that_no_node_has_are_refused_at_once(
    lab: World, fields: Any, field: str, words: str
) -> None:
    with pytest.raises(SpecError) as refused:
        submit(lab, **fields)
    assert words in refused.value.problems[field]


def test_resources_beyond_the_clusters_limit_are_refused_with_the_limit(lab: World) -> None:
    limits = {"cpu_limit_per_gpu": 8.0, "memory_limit_per_gpu": 32.0}
    lab.cluster = update_cluster(actor=lab.people.ada, cluster=lab.cluster, **limits)
    submit(lab, cpu=16, memory="64Gi", gpus=2)
    with pytest.raises(SpecError) as refused:
        submit(lab, cpu=17, memory="65Gi", gpus=2)
    assert refused.value.problems == {
        "cpu": "lab allows at most 8 CPUs per GPU, so a worker with 2 GPUs may have 16 CPUs",
        "memory": "lab allows at most 32 GiB of memory per GPU, so a worker with 2 GPUs may have 64Gi of memory",
    }


def test_roles_share_the_clusters_limit_with_those_beside_them(lab: World) -> None:
    limits = {"cpu_limit_per_gpu": 8.0, "memory_limit_per_gpu": 32.0}
    lab.cluster = update_cluster(actor=lab.people.ada, cluster=lab.cluster, **limits)

    def asks(**beside: Any) -> list[dict[str, Any]]:
        chief = {"name": "chief", "gpus_per_worker": 0} | beside
        return [{"name": "worker", "workers": 2, "cpu": 12.0, "memory": "48Gi"}, chief]

    submit(lab, gpus=2, workers=2, roles=asks(cpu=4.0, memory="16Gi"))
    for beside, words in (
        ({"cpu": 5.0, "memory": "1Gi"}, "beside it have 17 CPUs; 16 are allowed"),
        ({"cpu": 1.0, "memory": "17Gi"}, "beside it have 65Gi of memory; 64Gi are allowed"),
    ):
        with pytest.raises(SpecError) as refused:
            submit(lab, gpus=2, workers=2, roles=asks(**beside))
        assert words in refused.value.problems["roles"]


def test_a_cluster_without_a_claim_for_checkpoints_refuses_to_resume_from_them(lab: World) -> None:
    access = ClusterAccess.objects.create(cluster=lab.cluster, sealed_kubeconfig=b"", server="https://x")
    with pytest.raises(SpecError, match="no claim for checkpoints was named when lab was attached"):
        submit(lab, checkpoint="step-*.pt")
    access.checkpoint_claim = "checkpoints"
    access.save()
    assert submit(lab, checkpoint="step-*.pt", requirements="numpy").pk


def test_limits_are_numbers_or_nothing() -> None:
    for name in ("cpu_per_gpu", "memory_per_gpu", "cpu_limit_per_gpu", "memory_limit_per_gpu"):
        assert CHANGEABLE[name](None)
        assert CHANGEABLE[name](4.0)
        assert not CHANGEABLE[name](0.0)
        assert not CHANGEABLE[name](1e9)


@pytest.mark.django_db(transaction=True)
def test_jobs_of_this_machine_have_no_containers() -> None:
    here = world(v100=4)
    asked = {
        "cpu": 1, "memory": "1Gi", "shm": "1Gi", "working_directory": "/srv", "user_id": 7, "group_id": 7,
        "image_pull_policy": "Always", "image_pull_secret": "registry",
    }  # fmt: skip
    assert set(asked) == set(ONLY_IN_CONTAINERS)
    mounts = [{"name": "x", "path": "/data/x"}]
    with pytest.raises(SpecError) as refused:
        here.submit(here.people.bob, here.people.astro, volumes=mounts, **asked)
    assert set(refused.value.problems) == {*asked, "volumes"}
    assert "are processes on the portal's machine" in refused.value.problems["cpu"]
    assert "paths must be below /volumes" in refused.value.problems["volumes"]


@pytest.mark.parametrize("text", ["64", "64gi", "-1Gi", "Gi", "1e3Gi", "64 Gi", "0Gi", "1023Ki"])
def test_amounts_of_memory_have_a_unit(text: str) -> None:
    with pytest.raises(ValueError, match=r"amount|less than 1Mi"):
        read_bytes(text)
    with pytest.raises(SpecError):
        JobSpec.parse({"name": "x", "command": "x", "memory": text})


def test_shared_memory_is_a_part_of_memory() -> None:
    with pytest.raises(SpecError, match="must not be more than memory"):
        JobSpec.parse({"name": "x", "command": "x", "memory": "1Gi", "shm": "2Gi"})


# --- as a pod ----------------------------------------------------------------------------------------------


def test_a_pods_requests_equal_its_limits() -> None:
    container = Container(1.5, 3 * GIB, GIB, "/srv", 7, 8, "Always")
    pod = objects.Pod("image", ["true"], {}, 2, container=container)
    spec = objects.new_job(1, pod, workers=1, owner="x")["spec"]["template"]["spec"]
    [main] = spec["containers"]
    amounts = {"nvidia.com/gpu": "2", "cpu": "1500m", "memory": str(3 * GIB)}
    assert main["resources"] == {"limits": amounts, "requests": amounts}
    assert (main["workingDir"], main["imagePullPolicy"]) == ("/srv", "Always")
    assert [spec["securityContext"][name] for name in ("runAsUser", "runAsGroup", "fsGroup")] == [7, 8, 8]
    [shared] = [volume for volume in spec["volumes"] if volume["name"] == "shared-memory"]
    assert shared["emptyDir"] == {"medium": "Memory", "sizeLimit": str(GIB)}


@pytest.mark.parametrize(("given", "name"), [({}, "uid7"), ({"LOGNAME": "bob"}, "bob")])
def test_a_program_finds_a_name_for_the_user_that_it_runs_as(given: dict[str, str], name: str) -> None:
    pod = objects.Pod("image", ["true"], given, 1, container=Container(user_id=7))
    [main] = objects.new_job(1, pod, workers=1, owner="x")["spec"]["template"]["spec"]["containers"]
    assert [one["value"] for one in main["env"] if one["name"] == "LOGNAME"] == [name]


def test_an_image_is_pulled_with_a_secret_that_is_a_docker_configuration(lab: World) -> None:
    bob = lab.people.bob
    create_secret(actor=bob, name="registry", values={"value": '{"auths": {"registry.example": {}}}'})
    create_secret(actor=bob, name="no-registry", values={"value": "dontTellAnybody"})
    good, bad = (submit(lab, image_pull_secret=name) for name in ("registry", "no-registry"))
    assert secrets_of(good, JobSpec.parse(good.spec)).image == '{"auths": {"registry.example": {}}}'
    with pytest.raises(BackendError, match="no-registry must contain a Docker configuration") as refused:
        secrets_of(bad, JobSpec.parse(bad.spec))
    assert "dontTellAnybody" not in str(refused.value)
    with pytest.raises(SpecError, match="has a secret named nobodys"):
        submit(lab, image_pull_secret="nobodys")


# --- nothing else ------------------------------------------------------------------------------------------

POD = """
apiVersion: batch/v1
kind: Job
metadata: {name: mine}
spec:
  backoffLimit: 4
  template:
    spec:
      hostNetwork: true
      hostPID: true
      nodeName: gpu-1
      schedulerName: mine
      serviceAccountName: admin
      priorityClassName: system-node-critical
      tolerations: [{operator: Exists}]
      initContainers: [{name: first, image: alpine, securityContext: {privileged: true}}]
      containers:
        - name: main
          image: alpine
          securityContext: {runAsUser: 0, capabilities: {add: [SYS_ADMIN]}}
      volumes: [{name: root, hostPath: {path: /}}]
"""
DANGEROUS = {
    "hostPath": "ask an operator for a volume",
    "hostNetwork": "access to the node's network is never allowed",
    "hostPID": "is never allowed",
    "hostIPC": "use the field “shm” of the job spec instead",
    "hostPort": "use the field “port” of the job spec instead",
    "privileged": "root on the node",
    "capabilities": "jobs run without capabilities",
    "allowPrivilegeEscalation": "privilege escalation is never allowed",
    "runAsUser": "use the fields “user_id” and “group_id” of the job spec instead, which must be 1 or more",
    "nodeName": "Fairlot chooses the nodes",
    "tolerations": "Fairlot chooses the nodes",
    "schedulerName": "Fairlot chooses the nodes",
    "serviceAccountName": "a service account without rights",
    "priorityClassName": "use the field “priority” of the job spec instead",
    "initContainers": "a worker is one container",
    "securityContext": "Fairlot sets the security context",
}


@pytest.mark.parametrize("name", DANGEROUS)
def test_a_field_of_pods_is_refused_by_name_with_what_to_do_instead(name: str) -> None:
    snake = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
    for spelt in (name, snake, name.lower()):
        with pytest.raises(SpecError) as refused:
            JobSpec.parse({"name": "x", "command": "x", spelt: True})
        assert DANGEROUS[name] in refused.value.problems[spelt]
        assert refused.value.problems[spelt].startswith(f"{spelt} is not a field of a job spec: ")


def test_a_whole_job_of_kubernetes_gets_an_answer_for_each_of_its_fields() -> None:
    with pytest.raises(SpecError) as refused:
        JobSpec.from_yaml(POD)
    problems = refused.value.problems
    at = "spec.template.spec"
    for path in (
        f"{at}.hostNetwork", f"{at}.hostPID", f"{at}.nodeName", f"{at}.schedulerName", f"{at}.serviceAccountName",
        f"{at}.priorityClassName", f"{at}.tolerations", f"{at}.initContainers", f"{at}.volumes[0].hostPath",
        f"{at}.initContainers[0].securityContext.privileged", f"{at}.containers[0].securityContext.runAsUser",
        f"{at}.containers[0].securityContext.capabilities", "apiVersion", "kind", "spec.backoffLimit",
    ):  # fmt: skip
        assert path in problems, sorted(problems)


def test_one_that_is_put_into_a_field_of_ours_is_named_too() -> None:
    with pytest.raises(SpecError) as refused:
        JobSpec.parse({"name": "x", "command": "x", "volumes": [{"name": "a", "hostPath": {"path": "/"}}]})
    assert (
        "hostPath is not accepted here: access to the node's files"
        in refused.value.problems["volumes.0.hostPath"]
    )


@pytest.mark.parametrize("number", [0, -1, 2**31])
def test_no_team_user_is_root(number: int) -> None:
    for field in ("user_id", "group_id"):
        with pytest.raises(SpecError) as refused:
            JobSpec.parse({"name": "x", "command": "x", field: number})
        assert "a whole number of 1 or more" in refused.value.problems[field]


def test_no_field_of_ours_is_refused_as_one_of_theirs() -> None:
    refused = [name for name in JobSpec.model_fields if pod_fields.why_not(name)]
    assert refused == ["labels"]  # in a pod, `labels` belongs into `metadata`
    assert pod_fields.refusals({"labels": {"project": "apollo"}}, frozenset(JobSpec.model_fields)) == {}
    assert list(pod_fields.refusals({"metadata": {"labels": {}}}, frozenset(JobSpec.model_fields))) == [
        "metadata", "metadata.labels",
    ]  # fmt: skip


@given(
    st.recursive(
        st.none() | st.booleans() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["hostPath", "name", "spec", "x"]), inner, max_size=3)
        ),
        max_leaves=20,
    )
)
def test_whatever_is_posted_is_answered(data: Any) -> None:
    with pytest.raises(SpecError) as refused:
        JobSpec.from_yaml(yaml.safe_dump(data))
    assert refused.value.problems
