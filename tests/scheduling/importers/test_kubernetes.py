"""Objects of Kubernetes keep their meaning, and what would be dangerous or different is refused."""

from __future__ import annotations

import os
import subprocess
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml

from scheduling.importers.registry import convert
from scheduling.importers.report import Conversion, Fate, WorkKind
from scheduling.pipelines.definition import Definition
from scheduling.spec.job_spec import JobSpec
from tests.scheduling.importers.foreign_samples import SAMPLES

KNOWN = ("A100-40GB", "A100-80GB", "H100")


def pod(**container: Any) -> dict[str, Any]:
    spec = container.pop("pod", {})
    return {
        "containers": [{"name": "c", "image": "train:1", "command": ["python", "x.py"], **container}],
        **spec,
    }


def job(spec: dict[str, Any] | None = None, **container: Any) -> dict[str, Any]:
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"},
            "spec": {"template": {"spec": pod(**container)}, **(spec or {})}}  # fmt: skip


def converted(*objects: dict[str, Any]) -> Conversion:
    return convert(yaml.safe_dump_all(objects), known_generations=KNOWN)


def spec_of(*objects: dict[str, Any]) -> Any:
    found = converted(*objects)
    assert len(found.works) == 1, found.report
    return found.works[0].spec


def refusals(found: Conversion) -> str:
    assert found.works == ()
    return " ".join(f"{line.source}: {line.text}" for line in found.report if line.fate is Fate.REFUSED)


@pytest.mark.parametrize(
    ("container", "fields"),
    [
        ({"resources": {"limits": {"nvidia.com/gpu": 4, "cpu": "8", "memory": "64Gi"}}},
         {"gpus_per_worker": 4, "cpu": 8, "memory": "64Gi"}),
        ({"resources": {"requests": {"cpu": "500m", "memory": "1500M"}}}, {"cpu": 0.5, "memory": "1500M"}),
        ({"imagePullPolicy": "Always"}, {"image_pull_policy": "Always"}),
        ({"workingDir": "/app"}, {"working_directory": "/app"}),
        ({"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)2"}]}, {"variables": {"A": "1", "B": "12"}}),
        ({"pod": {"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}}},
         {"generations": ["A100-80GB"]}),
        ({"pod": {"nodeSelector": {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}}},
         {"generations": ["H100"]}),
        ({"pod": {"nodeSelector": {"node.kubernetes.io/instance-type": "p5.48xlarge"}}}, {"generations": ["H100"]}),
        ({"pod": {"terminationGracePeriodSeconds": 300}}, {"checkpoint_grace_seconds": 300}),
        ({"securityContext": {"runAsUser": 1001, "runAsGroup": 100}}, {"user_id": 1001, "group_id": 100}),
        ({"command": ["/bin/sh", "-c", "echo $(A)"], "env": [{"name": "A", "value": "x"}]}, {"command": "echo ${A}"}),
        ({"command": ["sh", "-ec"], "args": ["a\nb"]}, {"command": "set -e\na\nb"}),
        ({"command": ["bash", "-c", "it's $(date)"]}, {"command": """bash -c 'it'"'"'s $(date)'"""}),
        ({"command": ["run", "--x=$(A)/y", "$$(A)"], "env": [{"name": "A", "value": "x"}]},
         {"command": """run --x="${A}"/y '$''(A)'"""}),
        ({"volumeMounts": [{"name": "v", "mountPath": "/data"}],
          "pod": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "imagenet"}}]}},
         {"volumes": [{"name": "imagenet", "path": "/data"}]}),
        ({"volumeMounts": [{"name": "s", "mountPath": "/dev/shm"}],
          "pod": {"volumes": [{"name": "s", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}}]}},
         {"shm": "16Gi"}),
        ({"volumeMounts": [{"name": "c", "mountPath": "/scripts"}],
          "pod": {"volumes": [{"name": "c", "configMap": {"name": "train.py"}}]}},
         {"secret_files": [{"name": "train-py", "path": "/scripts"}]}),
    ],
)  # fmt: skip
def test_fields_of_pods_become_fields_of_jobs(container: dict[str, Any], fields: dict[str, Any]) -> None:
    spec = spec_of(job(**container))
    assert {name: spec.get(name) for name in fields} == fields


@pytest.mark.parametrize(
    ("container", "says"),
    [
        ({"pod": {"hostNetwork": True}}, "node's network"),
        ({"pod": {"hostIPC": True}}, "shared memory"),
        ({"securityContext": {"privileged": True}}, "privileged"),
        ({"securityContext": {"runAsUser": 0}}, "never run as root"),
        ({"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}, "SYS_ADMIN"),
        ({"volumeMounts": [{"name": "h", "mountPath": "/data"}],
          "pod": {"volumes": [{"name": "h", "hostPath": {"path": "/data"}}]}}, "Folders of the node"),
        ({"volumeMounts": [{"name": "p", "mountPath": "/data", "subPath": "x"}],
          "pod": {"volumes": [{"name": "p", "persistentVolumeClaim": {"claimName": "p"}}]}}, "subPath"),
        ({"resources": {"limits": {"nvidia.com/mig-1g.10gb": 1}}}, "part of a GPU"),
        ({"resources": {"limits": {"google.com/tpu": 4}}}, "GPUs only"),
        ({"command": None, "args": ["--x"]}, "program of its image"),
        ({"image": "train:${TAG}"}, "nobody fills in"),
        ({"image": "{{ .Values.image }}"}, "template"),
        ({"command": ["sh", "-c", "wandb login 0123456789abcdef0123456789abcdef01234567"]}, "credential"),
        ({"pod": {"initContainers": [{"name": "i", "image": "a"}]}}, "beginning of its command"),
    ],
)  # fmt: skip
def test_what_would_be_dangerous_or_different_is_refused(container: dict[str, Any], says: str) -> None:
    assert says in refusals(converted(job(**container)))


def test_a_second_container_is_refused() -> None:
    found = converted(job(spec={"template": {"spec": {"containers": [
        {"image": "a", "command": ["b"]}, {"image": "log", "command": ["c"]}]}}}))  # fmt: skip
    assert "containers[1]" in refusals(found)


def test_secrets_become_references_and_never_values() -> None:
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "s3"},
        "stringData": {"AWS_KEY": "val-ue-1"},
    }
    env = [
        {"name": "WANDB_API_KEY", "valueFrom": {"secretKeyRef": {"name": "wandb.io", "key": "api"}}},
        {"name": "HF_TOKEN", "value": "hf_" + "a1B2" * 6},
        {"name": "DB", "value": "postgres://me:pass-word-2@db/x"},
    ]
    found = converted(secret, job(env=env, envFrom=[{"secretRef": {"name": "s3"}}]))
    assert found.works[0].spec["secrets"] == {
        "AWS_KEY": "s3/AWS_KEY", "WANDB_API_KEY": "wandb-io/api", "HF_TOKEN": "hf-token", "DB": "db",
    }  # fmt: skip
    assert not any(part in str(found) for part in ("val-ue-1", "a1B2a1B2", "pass-word-2"))


INDEXED = {"parallelism": 4, "completions": 4, "completionMode": "Indexed"}
AT_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


@pytest.mark.parametrize(
    "together",
    [
        {"pod": {"subdomain": "svc"}},
        {"env": [{"name": "MASTER_ADDR", "value": "j-0.svc"}]},
        {"command": ["torchrun", "--nnodes=4", "x.py"]},
        {"args": ["--coordinator=j-0.svc"]},
        {"ports": [{"containerPort": 29500}]},
        {"labels": {"kueue.x-k8s.io/pod-group-name": "g"}},
        {"annotations": {"scheduling.volcano.sh/gang-name": "g"}},
    ],
)
def test_pods_that_reach_each_other_are_the_workers_of_one_job(together: dict[str, Any]) -> None:
    metadata = {name: together.pop(name) for name in ("labels", "annotations") if name in together}
    made = job(INDEXED, **together)
    made["spec"]["template"]["metadata"] = metadata
    spec = spec_of(made)
    assert spec["workers"] == 4
    assert spec["command"].startswith('export JOB_COMPLETION_INDEX="$RANK"\n')


@pytest.mark.parametrize(
    ("spec", "size", "at_once"),
    [
        (INDEXED, 4, None),
        (INDEXED | {"parallelism": 3}, 4, 3),
        ({"completions": 5, "completionMode": "Indexed"}, 5, 1),
        ({"completions": 5000, "parallelism": 2}, 5000, 2),
    ],
)
def test_completions_that_run_by_themselves_are_the_members_of_a_sweep(
    spec: dict[str, Any], size: int, at_once: int | None
) -> None:
    env = [{"name": "PART", "valueFrom": {"fieldRef": {"fieldPath": AT_INDEX}}}]
    found = converted(job(spec, env=env))
    [work] = found.works
    assert work.kind is WorkKind.SWEEP
    assert work.options["parameters"] == {"kind": "array", "count": size}
    assert work.options.get("at_once") == at_once
    assert work.spec.get("workers", 1) == 1
    if "completionMode" in spec:
        assert (
            'export JOB_COMPLETION_INDEX="$SWEEP_INDEX"\nexport PART="$SWEEP_INDEX"\n' in work.spec["command"]
        )
    assert any(line.text.startswith(f"A sweep of {work.members}.") for line in found.report)


def test_more_completions_than_a_sweep_has_members_are_refused() -> None:
    assert "at most 10" in refusals(converted(job({"completions": 10_001})))
    cron = {"schedule": "5 1 * * *", "jobTemplate": {"spec": job(INDEXED)["spec"]}}
    found = converted({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "c"}, "spec": cron})
    assert "A schedule submits one job" in refusals(found)


def test_a_cron_job_is_a_schedule() -> None:
    cron = {"schedule": "*/5 1 * * 1-5", "timeZone": "Europe/Berlin", "concurrencyPolicy": "Replace",
            "startingDeadlineSeconds": 600, "jobTemplate": {"spec": job()["spec"]}}  # fmt: skip
    found = converted({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "c"}, "spec": cron})
    assert found.works[0].kind is WorkKind.SCHEDULE
    assert found.works[0].options == {
        "expression": "*/5 1 * * 1-5", "time_zone": "Europe/Berlin", "overlap": "replace", "missed": "once",
        "catch_up_seconds": 600,
    }  # fmt: skip
    bad = {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": "c"},
        "spec": cron | {"schedule": "x"},
    }
    assert "timetable is not accepted" in refusals(converted(bad))


def roles(kind: str, field: str, master: dict[str, Any], worker: dict[str, Any]) -> dict[str, Any]:
    specs = {"Master" if kind == "PyTorchJob" else "Launcher": {"replicas": 1, "template": {"spec": master}},
             "Worker": {"replicas": 2, "template": {"spec": worker}}}  # fmt: skip
    return {"apiVersion": "kubeflow.org/v1", "kind": kind, "metadata": {"name": "k"}, "spec": {field: specs}}


def test_roles_that_differ_in_their_command_run_it_by_rank() -> None:
    spec = spec_of(
        roles(
            "PyTorchJob",
            "pytorchReplicaSpecs",
            pod(command=["echo", "lead"]),
            pod(command=["echo", "follow"]),
        )
    )
    assert spec["workers"] == 3
    said = [
        subprocess.run(["/bin/sh", "-c", spec["command"]], env={"RANK": rank, "PATH": os.environ["PATH"]},
                       capture_output=True, text=True, check=True).stdout
        for rank in "012"
    ]  # fmt: skip
    assert said == ["lead\n", "follow\n", "follow\n"]


def test_an_elastic_policy_bounds_the_workers() -> None:
    policy = {"minReplicas": 1, "maxReplicas": 4, "rdzvBackend": "c10d", "maxRestarts": 3, "metrics": []}
    made = roles("PyTorchJob", "pytorchReplicaSpecs", pod(), pod())
    made["spec"]["elasticPolicy"] = policy
    assert "max_workers" not in spec_of(made)
    del made["spec"]["pytorchReplicaSpecs"]["Master"]
    found = converted(made)
    (spec,) = (work.spec for work in found.works)
    assert (spec["workers"], spec["max_workers"], spec["retries"]) == (1, 4, {"times": 3})
    dropped = [line.source for line in found.report if line.fate is Fate.DROPPED]
    assert [one for one in dropped if "elastic" in one] == ["spec.elasticPolicy.metrics"]


def test_roles_may_differ_in_variables_that_fairlot_sets() -> None:
    address = [{"name": "MASTER_ADDR", "value": "k-master-0"}, {"name": "MASTER_PORT", "value": "23456"}]
    spec = spec_of(roles("PyTorchJob", "pytorchReplicaSpecs", pod(env=address), pod()))
    assert (spec["workers"], "variables" in spec) == (3, False)


def of_gpus(**container: Any) -> dict[str, Any]:
    return pod(**{"resources": {"limits": {"nvidia.com/gpu": "1"}}} | container)


def of_cpus(**container: Any) -> dict[str, Any]:
    """Returns a pod that requests no GPUs."""
    made = pod(**container)
    made["containers"][0]["resources"] = {"limits": {"cpu": "2", "memory": "4Gi"}}
    return made


def test_pods_that_differ_in_more_become_roles() -> None:
    env = [{"name": "ONLY", "value": "workers"}]
    spec = spec_of(roles("PyTorchJob", "pytorchReplicaSpecs", of_gpus(), of_gpus(image="other:1", env=env)))
    made = JobSpec.parse(spec)
    master, worker = made.roles
    assert (made.workers, master.workers, worker.workers) == (3, 1, 2)
    assert (master.environment, worker.environment) == (made.environment, "other:1")
    assert (master.variables, worker.variables) == ({}, {"ONLY": "workers"})
    assert (master.ends_job, worker.ends_job) == (True, False)


def test_a_master_without_gpus_is_refused_because_it_would_have_no_rank() -> None:
    found = converted(roles("PyTorchJob", "pytorchReplicaSpecs", of_cpus(), of_gpus()))
    assert "would have no RANK" in refusals(found)


def test_roles_share_their_volumes_and_cannot_differ_in_the_grace() -> None:
    claim = {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}
    mounted = of_gpus(image="other:1", volumeMounts=[{"name": "v", "mountPath": "/data"}]) | claim
    spec = spec_of(roles("PyTorchJob", "pytorchReplicaSpecs", of_gpus(), mounted))
    assert spec["volumes"] == [{"name": "data", "path": "/data"}]
    first = of_gpus() | {"terminationGracePeriodSeconds": 10}
    second = of_gpus(image="other:1") | {"terminationGracePeriodSeconds": 20}
    found = converted(roles("PyTorchJob", "pytorchReplicaSpecs", first, second))
    assert "Worker differs from other workers in the field checkpoint_grace_seconds" in refusals(found)


def test_an_mpi_job_has_a_launcher_without_gpus_and_workers_that_wait_for_it() -> None:
    launcher = of_cpus(command=["mpirun", "-np", "2", "--hostfile", "/etc/mpi/hostfile", "python", "x.py"])
    spec = spec_of(roles("MPIJob", "mpiReplicaSpecs", launcher, of_gpus(command=["/usr/sbin/sshd", "-De"])))
    made = JobSpec.parse(spec)
    assert (made.launch, made.workers) == ("mpi", 2)
    assert made.command == "mpirun -np 2 --hostfile '$FAIRLOT_HOSTFILE' python x.py".replace("'", "")
    first, worker = made.roles
    assert (first.name, first.gpus_per_worker, first.cpu, first.ends_job) == ("launcher", 0, 2, True)
    assert (worker.name, worker.workers, worker.command) == ("worker", 2, "")


def test_a_tensorflow_job_has_a_role_for_each_kind_of_replica() -> None:
    specs = {"Chief": of_gpus(), "Worker": of_gpus(), "PS": of_cpus(image="ps:1"), "Evaluator": of_cpus()}
    replicas = {name: {"replicas": 1, "template": {"spec": one}} for name, one in specs.items()}
    spec = spec_of({"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": {"name": "k"},
                    "spec": {"tfReplicaSpecs": replicas}})  # fmt: skip
    made = JobSpec.parse(spec)
    assert [role.name for role in made.roles] == ["chief", "worker", "ps", "evaluator"]
    assert [role.gpus_per_worker for role in made.roles] == [1, 1, 0, 0]
    assert [role.ends_job for role in made.roles] == [True, False, False, False]
    assert made.roles[2].environment == "ps:1"


def test_of_pods_that_differ_and_request_no_gpus_those_that_train_hold_some() -> None:
    made = spec_of(roles("PyTorchJob", "pytorchReplicaSpecs", pod(), pod(image="other:1")))
    assert [one["gpus_per_worker"] for one in made["roles"]] == [1, 1]
    of_mpi = roles("MPIJob", "mpiReplicaSpecs", pod(), pod(command=["/usr/sbin/sshd"]))
    made = spec_of(of_mpi)
    assert [(one["name"], one["gpus_per_worker"]) for one in made["roles"]] == [
        ("launcher", 0),
        ("worker", 1),
    ]
    mounted = pod(
        volumeMounts=[{"name": "c", "mountPath": "/c"}],
        pod={"volumes": [{"name": "c", "configMap": {"name": "c"}}]},
    )
    assert "Worker differs from Master" in refusals(
        converted(roles("PyTorchJob", "pytorchReplicaSpecs", pod(), mounted))
    )


def test_the_slots_of_an_mpi_job_are_the_gpus_of_its_workers() -> None:
    of_mpi = roles(
        "MPIJob", "mpiReplicaSpecs", pod(), pod(command=None, resources={"limits": {"nvidia.com/gpu": 4}})
    )
    for slots, fate in ((4, Fate.MAPPED), (1, Fate.APPROXIMATED)):
        of_mpi["spec"]["slotsPerWorker"] = slots
        (line,) = [one for one in converted(of_mpi).report if one.source == "spec.slotsPerWorker"]
        assert (line.fate, "slot for each of its GPUs" in line.text) == (fate, True)
    launcher = of_mpi["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]
    launcher["containers"][0]["command"] = [
        "horovodrun",
        "--host-discovery-script",
        "/etc/mpi/discover_hosts.sh",
        "x",
    ]
    assert "a file in /etc/mpi" in refusals(converted(of_mpi))


@pytest.mark.parametrize(
    ("script", "is_left_out"),
    [
        ("until nslookup head.$(cat /ns).svc; do echo waiting; sleep 2; done", True),
        ("set -e; while ! nc -z db 5432; do sleep 1; done; echo ready", True),
        ("until nslookup head; do sleep 2; done; wget http://files/data.tar", False),
        ("until wget http://files/data.tar; do sleep 2; done", False),
        ("chown 1000 /data", False),
    ],
)
def test_an_init_container_that_only_waits_is_left_out(script: str, is_left_out: bool) -> None:
    first = {"name": "i", "image": "busybox", "command": ["sh", "-c", script]}
    found = converted(job(pod={"initContainers": [first]}))
    assert [work.spec["command"] for work in found.works] == (["python x.py"] if is_left_out else [])


def test_volcano_jobs_and_job_sets_count_all_their_pods() -> None:
    task = {"replicas": 4, "name": "t", "template": {"spec": pod()}}
    volcano = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "v"},
               "spec": {"queue": "q", "minAvailable": 4, "tasks": [task]}}  # fmt: skip
    assert spec_of(volcano)["workers"] == 4
    ps = {"replicas": 2, "name": "ps", "template": {"spec": of_cpus()}}
    trains = task | {"template": {"spec": of_gpus()}}
    two_tasks = volcano | {"spec": volcano["spec"] | {"minAvailable": 6, "tasks": [ps, trains]}}
    assert [(one["name"], one["workers"]) for one in spec_of(two_tasks)["roles"]] == [("ps", 2), ("t", 4)]
    assert "could never start" in refusals(
        converted(volcano | {"spec": volcano["spec"] | {"minAvailable": 5}})
    )
    replicated = {
        "name": "w",
        "replicas": 2,
        "template": {"spec": job({"parallelism": 3, "completions": 3})["spec"]},
    }
    jobs = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "s"},
            "spec": {"replicatedJobs": [replicated]}}  # fmt: skip
    assert spec_of(jobs)["workers"] == 6


def test_pods_of_volcano_read_the_hosts_of_their_tasks() -> None:
    (work,) = convert(SAMPLES["kubernetes-volcano"]).works
    made = JobSpec.parse(dict(work.spec))
    assert [(one.name, one.workers, one.gpus_per_worker, one.ends_job) for one in made.roles] == [
        ("ps", 1, 0, False), ("worker", 2, 1, True),
    ]  # fmt: skip
    hosts = {"FAIRLOT_HOSTS_PS": "a-0:2222", "FAIRLOT_HOSTS_WORKER": "b-0:2222,b-1:2222"}
    env = hosts | {"FAIRLOT_ROLE_INDEX": "1", "PATH": "/bin:/usr/bin"}
    with TemporaryDirectory() as folder:
        script = made.roles[1].command.replace("/tmp/volcano", folder).replace("python train.py", "echo")
        ran = subprocess.run(["/bin/sh", "-c", script], env=env, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == [
        "--ps=a-0:2222,",
        "--workers=b-0:2222,b-1:2222,",
        "--task=1",
        "--all=b-0,b-1",
        "--of=2",
    ]


def _volcano(plugins: dict[str, Any], *tasks: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "v"},
            "spec": {"plugins": plugins, "tasks": list(tasks), **more}}  # fmt: skip


COMPLETES = {"event": "TaskCompleted", "action": "CompleteJob"}


def test_mpirun_of_volcano_logs_in_from_the_task_whose_end_ends_the_job() -> None:
    script = "MPI_HOST=`cat /etc/volcano/w.host | tr '\\n' ','`; mpiexec --host ${MPI_HOST} -np 2 a.out"
    master = {
        "name": "m",
        "policies": [COMPLETES],
        "template": {"spec": of_cpus(command=["sh", "-c", script])},
    }
    worker = {"name": "w", "replicas": 2, "template": {"spec": of_gpus(command=["/usr/sbin/sshd", "-D"])}}
    spec = spec_of(_volcano({"ssh": [], "svc": []}, master, worker))
    assert (spec["launch"], [one["name"] for one in spec["roles"]]) == ("mpi", ["m", "w"])
    assert "command" not in spec["roles"][1]
    works_itself = worker | {"template": {"spec": of_gpus(command=["a.out"])}}
    assert "launch: mpi" in refusals(converted(_volcano({"ssh": []}, master, works_itself)))
    without = converted(_volcano({"ssh": [], "svc": []}, master | {"policies": []}, worker))
    assert [one.get("ends_job", False) for one in without.works[0].spec["roles"]] == [True, False]
    assert any(line.target == "ends_job" and line.fate is Fate.APPROXIMATED for line in without.report)


def test_a_cron_job_of_volcano_is_a_schedule_of_all_its_pods() -> None:
    task = {"replicas": 3, "name": "t", "template": {"spec": pod()}}
    spec = {"schedule": "0 1 * * *", "concurrencyPolicy": "Forbid", "successfulJobsHistoryLimit": 2,
            "jobTemplate": {"spec": {"minAvailable": 3, "maxRetry": 2, "tasks": [task]}}}  # fmt: skip
    cron = {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "CronJob",
        "metadata": {"name": "v"},
        "spec": spec,
    }
    found = converted(cron)
    (work,) = found.works
    assert (work.kind, work.spec["workers"], work.spec["retries"]) == (WorkKind.SCHEDULE, 3, {"times": 2})
    assert (work.options["expression"], work.options["overlap"]) == ("0 1 * * *", "forbid")
    assert "no tasks" in refusals(converted(cron | {"spec": spec | {"jobTemplate": {"spec": {}}}}))
    assert "Volcano CronJob" in refusals(converted(cron | {"kind": "JobFlow"}))


def test_the_policies_of_volcano_end_the_job_where_roles_can() -> None:
    task = {"name": "a", "replicas": 2, "template": {"spec": of_gpus()}, "policies": [COMPLETES]}
    assert "roles" not in spec_of(_volcano({}, task))
    other = {"name": "b", "template": {"spec": of_gpus()}}
    spec = spec_of(_volcano({"tensorflow": []}, task, other, policies=[COMPLETES]))
    assert [one.get("ends_job", False) for one in spec["roles"]] == [True, False]
    found = converted(_volcano({}, task | {"policies": []}, other, policies=[COMPLETES]))
    (line,) = [line for line in found.report if line.source == "spec.policies[0]"]
    assert (line.fate, "give ends_job" in line.text) == (Fate.APPROXIMATED, True)
    indexed = of_gpus(command=["sh", "-c", "a.out $VC_TASK_INDEX"])
    alone = spec_of(_volcano({"env": []}, task | {"template": {"spec": indexed}}))
    assert alone["command"].startswith('export VC_TASK_INDEX="$RANK"\n')


@pytest.mark.parametrize(
    ("policy", "ends"),
    [
        ({"operator": "All", "targetReplicatedJobs": ["a"]}, [True, False]),
        ({"operator": "Any", "targetReplicatedJobs": ["b"]}, [False, True]),
        ({"operator": "All"}, None),
        ({"operator": "Any", "targetReplicatedJobs": ["a", "b"]}, None),
    ],
)
def test_the_success_policy_of_a_job_set_says_whose_end_ends_the_job(
    policy: dict[str, Any], ends: list[bool] | None
) -> None:
    replicated = [
        {"name": name, "template": {"spec": {"template": {"spec": of_gpus()}}}} for name in ("a", "b")
    ]
    jobs = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "s"},
            "spec": {"replicatedJobs": replicated, "successPolicy": policy}}  # fmt: skip
    spec = spec_of(jobs)
    assert ([one.get("ends_job", False) for one in spec["roles"]] if "roles" in spec else None) == ends
    unknown = jobs | {"spec": jobs["spec"] | {"successPolicy": {"targetReplicatedJobs": ["c"]}}}
    assert "is called c" in refusals(converted(unknown))


def test_replicated_jobs_that_wait_for_others_are_steps_of_a_pipeline() -> None:
    def replicated(name: str, pods: dict[str, Any], *needs: str, status: str = "Complete") -> dict[str, Any]:
        depends = [{"name": one, "status": status} for one in needs]
        return {"name": name, "dependsOn": depends, "template": {"spec": {"template": {"spec": pods}}}}

    jobs = [replicated("data", of_cpus()), replicated("model", of_cpus()), replicated("tell", of_cpus(), "node"),
            replicated("node", of_gpus(), "data", "model"), replicated("eval", of_cpus(), "data", "model")]  # fmt: skip
    text = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "s", "labels": {"a": "b"}},
            "spec": {"replicatedJobs": jobs, "successPolicy": {"targetReplicatedJobs": ["node"]}}}  # fmt: skip
    (work,) = converted(text).works
    made = {step.name: step for step in Definition.parse(work.options["pipeline"]).steps}
    assert {name: {need.step for need in step.needs} for name, step in made.items()} == {
        "data": set(), "model": set(), "node": {"data", "model"}, "tell": {"node"},
    }  # fmt: skip
    assert [(one.name, one.ends_job) for one in made["node"].spec.roles] == [("node", True), ("eval", False)]
    assert made["data"].spec.labels == {"a": "b"}
    text["spec"] = {
        "replicatedJobs": [jobs[3] | {"dependsOn": []}, replicated("w", of_gpus(), "node", status="Ready")]
    }
    assert spec_of(text)["workers"] == 2
    text["spec"] = {"replicatedJobs": [jobs[0], replicated("data", of_cpus(), "data")]}
    assert "same name" in refusals(converted(text))


def test_a_role_may_ask_for_no_gpus() -> None:
    none = of_gpus()
    none["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": 0}}
    spec = spec_of(
        _volcano(
            {}, {"name": "a", "template": {"spec": none}}, {"name": "b", "template": {"spec": of_gpus()}}
        )
    )
    assert [one["gpus_per_worker"] for one in spec["roles"]] == [0, 1]


def test_a_train_job_takes_what_it_lacks_from_its_runtime() -> None:
    version = "trainer.kubeflow.org/v1alpha1"
    node = {"name": "node", "template": {"spec": {"template": {"spec": pod(image="torch:2")}}}}
    template = {"mlPolicy": {"numNodes": 2}, "template": {"spec": {"replicatedJobs": [node]}}}
    runtime = {
        "apiVersion": version,
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": "torch"},
        "spec": template,
    }
    trainer = {"command": ["torchrun", "x.py"], "resourcesPerNode": {"requests": {"nvidia.com/gpu": 2}}}
    train = {"apiVersion": version, "kind": "TrainJob", "metadata": {"name": "t"},
             "spec": {"runtimeRef": {"name": "torch"}, "trainer": trainer}}  # fmt: skip
    spec = spec_of(runtime, train)
    assert (spec["workers"], spec["environment"], spec["gpus_per_worker"]) == (2, "torch:2", 2)
    assert spec["command"] == "torchrun x.py"
    assert Fate.DEFAULTED not in {line.fate for line in converted(runtime, train).report}
    other = {"runtimeRef": {"name": "other"}, "trainer": trainer}
    assert "environment" not in spec_of(train | {"spec": other})


def test_queues_are_reported_and_other_objects_are_left_out() -> None:
    queued = job()
    queued["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "q", "team": "x"}
    found = converted({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}, queued)
    assert found.works[0].spec["labels"] == {"team": "x"}
    fates = {line.source: line.fate for line in found.report}
    assert fates["document 1"] is Fate.DROPPED
    assert fates['document 2.metadata.labels["kueue.x-k8s.io/queue-name"]'] is Fate.DROPPED
    assert "StatefulSet is not imported" in refusals(
        converted({"apiVersion": "apps/v1", "kind": "StatefulSet"})
    )


def test_a_list_has_a_work_for_each_object() -> None:
    other = job()
    other["metadata"] = {"name": "k"}
    found = converted({"apiVersion": "v1", "kind": "List", "items": [job(), other]})
    assert [work.name for work in found.works] == ["j", "k"]


def test_a_deployment_is_a_service() -> None:
    container = pod(
        ports=[{"containerPort": 8000}],
        readinessProbe={"httpGet": {"path": "/health", "port": 8000}, "periodSeconds": 10},
    )
    spec = {"replicas": 3, "template": {"spec": container}, "selector": {},
            "strategy": {"rollingUpdate": {"maxSurge": 2, "maxUnavailable": "25%"}}}  # fmt: skip
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "chat"}, "spec": spec}
    found = converted(deployment)
    assert [(work.kind, work.options) for work in found.works] == [
        (WorkKind.SERVICE, {"replicas": 3, "max_surge": 2})
    ]
    fields = found.works[0].spec
    assert (fields["port"], fields["readiness_path"], fields["readiness_period_seconds"]) == (
        8000,
        "/health",
        10,
    )
    assert "answers at a port" in refusals(converted(deployment | {"spec": {"template": {"spec": pod()}}}))


def _ray(kind: str, head: dict[str, Any], *groups: dict[str, Any], **parameters: str) -> dict[str, Any]:
    cluster = {"headGroupSpec": {"rayStartParams": parameters, "template": {"spec": head}},
               "workerGroupSpecs": list(groups)}  # fmt: skip
    spec = (
        cluster if kind == "RayCluster" else {"entrypoint": "python /samples/x.py", "rayClusterSpec": cluster}
    )
    return {"apiVersion": "ray.io/v1", "kind": kind, "metadata": {"name": "r"}, "spec": spec}


def _group(name: str, replicas: int, spec: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"groupName": name, "replicas": replicas, "template": {"spec": spec}, **more}


def test_the_workers_of_a_ray_job_have_what_the_head_has() -> None:
    mount = {"volumeMounts": [{"name": "c", "mountPath": "/samples"}],
             "pod": {"volumes": [{"name": "c", "configMap": {"name": "code"}}]}}  # fmt: skip
    ray = _ray(
        "RayJob", pod(**mount), _group("g", 2, pod(), rayStartParams={"num-cpus": "4", "block": "true"})
    )
    spec = spec_of(ray)
    assert (spec["workers"], spec["secret_files"]) == (2, [{"name": "code", "path": "/samples"}])
    assert 'until [ "$(joined)" -ge "$WORLD_SIZE" ]' in spec["command"]
    assert 'ray start --address="$MASTER_ADDR:6379" --num-cpus=4; do' in spec["command"]
    ray["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["template"]["spec"] = pod(image="other:1")
    assert "different images" in refusals(converted(ray))


def test_groups_of_a_ray_job_and_a_head_that_differs_are_roles() -> None:
    small = _group(
        "small", 2, of_gpus(), rayStartParams={"resources": '"{\\"disk\\": 1}"', "node-ip-address": "$IP"}
    )
    large = _group("Large GPUs", 1, of_gpus(image="large:1"), numOfHosts=2)
    none = _group("later", 0, of_gpus())
    found = converted(_ray("RayJob", of_cpus(image="head:1"), small, large, none, **{"num-cpus": "0"}))
    assert [line for line in found.report if line.fate is Fate.REFUSED] == []
    spec = JobSpec.parse(dict(found.works[0].spec))
    assert [(one.name, one.workers, one.holds_gpus, one.ends_job, one.environment) for one in spec.roles] == [
        ("head", 1, False, True, "head:1"), ("small", 2, True, False, "train:1"),
        ("large-gpus", 2, True, False, "large:1"),
    ]  # fmt: skip
    head, first, second = (one.command for one in spec.roles)
    assert "ray start --head --port=6379 --dashboard-host=0.0.0.0 --num-cpus=0\n" in head
    assert '-ge "$FAIRLOT_WORLD_SIZE"' in head
    assert "python /samples/x.py" in head
    joins = 'until ray start --address="${FAIRLOT_HOSTS_HEAD%%:*}:6379" --block'
    assert (first, second) == (
        f"{joins} --resources='{{\"disk\": 1}}'; do sleep 2; done",
        f"{joins}; do sleep 2; done",
    )
    for command in (head, first):
        subprocess.run(["sh", "-n", "-c", command], check=True)
    left = {
        line.source.rpartition(".")[2]: line.fate
        for line in found.report
        if "workerGroupSpecs" in line.source
    }
    assert left["workerGroupSpecs[2]"] is Fate.APPROXIMATED
    assert (left["resources"], left["node-ip-address"]) == (Fate.MAPPED, Fate.DROPPED)


def test_groups_of_a_ray_cluster_without_gpus_hold_some_and_the_head_none() -> None:
    made = spec_of(_ray("RayCluster", pod(), _group("a", 1, pod()), _group("b", 1, of_cpus())))
    assert [one["gpus_per_worker"] for one in made["roles"]] == [0, 1, 1]
    alone = spec_of(_ray("RayCluster", pod(), _group("a", 0, pod())))
    assert (alone["workers"], "roles" in alone) == (1, False)
    alike = spec_of(_ray("RayCluster", of_gpus(), _group("a", 2, of_gpus())))
    assert (alike["workers"], "roles" in alike) == (3, False)


def test_a_ray_cluster_becomes_a_job_that_runs_until_it_is_cancelled() -> None:
    text = """
apiVersion: ray.io/v1
kind: RayCluster
metadata: {name: shared}
spec:
  rayVersion: "2.9.0"
  headGroupSpec:
    rayStartParams: {dashboard-host: 0.0.0.0}
    template: {spec: {containers: [{name: head, image: "rayproject/ray:2.9.0"}]}}
  workerGroupSpecs:
    - groupName: gpus
      replicas: 3
      rayStartParams: {}
      template:
        spec:
          containers:
            - {name: worker, image: "rayproject/ray:2.9.0", resources: {limits: {nvidia.com/gpu: 2}}}
"""
    found = convert(text)
    assert [line for line in found.report if line.fate is Fate.REFUSED] == []
    (work,) = found.works
    assert (work.kind, work.name, work.spec["port"]) == (WorkKind.JOB, "shared", 8265)
    head, gpus = work.spec["roles"]
    assert (head["gpus_per_worker"], gpus["workers"], gpus["gpus_per_worker"]) == (0, 3, 2)
    assert head["command"].startswith("exec ray start --head")
