"""A pod sees the checkpoints of earlier jobs in the claim of its own checkpoints, and cannot change them."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

from scheduling.backends.base import FilesToCopy, Gang, Input, Worker
from scheduling.backends.kubernetes import objects
from scheduling.backends.kubernetes.backend import _with_copy


def test_a_pod_mounts_the_folders_of_earlier_jobs_read_only_from_one_claim() -> None:
    inputs = [Input("prepare", 41), Input("job-7", 7)]
    pod = objects.Pod("image", ["go"], {}, gpus=1, checkpoint_claim="kept", inputs=inputs)
    spec = objects.new_pod(42, pod, owner="us", attempt=objects.Attempt(1, "t", "A100", ["node"]))["spec"]
    assert [volume["name"] for volume in spec["volumes"] if "persistentVolumeClaim" in volume] == [
        "checkpoint"
    ]
    [main] = spec["containers"]
    mounts = {one["mountPath"]: one for one in main["volumeMounts"] if one["name"] == "checkpoint"}
    assert mounts == {
        "/checkpoint": {"name": "checkpoint", "mountPath": "/checkpoint", "subPath": objects.job_name(42)},
        **{
            f"/inputs/{one.name}/checkpoint": {
                "name": "checkpoint",
                "mountPath": f"/inputs/{one.name}/checkpoint",
                "subPath": objects.job_name(one.job_id),
                "readOnly": True,
            }
            for one in inputs
        },
    }
    told = {one["name"]: one.get("value") for one in main["env"]}
    assert told["FAIRLOT_INPUT_PREPARE"] == "/inputs/prepare"
    assert told["FAIRLOT_INPUT_JOB_7"] == "/inputs/job-7"


def test_the_container_that_names_the_checkpoint_only_reads_checkpoints_and_takes_no_more_than_the_job() -> (
    None
):
    pod = objects.Pod(
        "image", ["go"], {"TOKEN": "x"}, gpus=1, checkpoint_claim="kept", resume_report=["find", "$HOME"],
        container=objects.Container(cpus=2, memory=1 << 30),
    )  # fmt: skip
    spec = objects.new_pod(42, pod, owner="us", attempt=objects.Attempt(1, "t", "A100", ["node"]))["spec"]
    [first], [main] = spec["initContainers"], spec["containers"]
    assert first["command"] == ["find", "$$HOME"]
    folder = {"name": "checkpoint", "mountPath": "/checkpoint", "subPath": objects.job_name(42)}
    assert first["volumeMounts"] == [folder | {"readOnly": True}]
    assert {one["name"]: one["value"] for one in first["env"]} == {
        "FAIRLOT_CHECKPOINT_DIR": "/checkpoint",
        **objects.NO_GPUS,
    }
    assert main["resources"]["limits"] == first["resources"]["limits"] | {objects.NVIDIA: "1"}
    assert first["securityContext"] == main["securityContext"]


def test_a_session_started_again_mounts_and_copies_the_checkpoints_of_the_earlier_one() -> None:
    worker = Worker(0, "node", (0,), (), None)
    gang = Gang(
        job_id=42, epoch=1, token=uuid4(), generation="A100", command=["serve", "notes"], environment_name="image",
        environment={}, progress_pattern="", grace_seconds=1.0, log_limit_bytes=1, workers=[worker],
    )  # fmt: skip
    assert _with_copy(gang) is gang
    copied = _with_copy(replace(gang, copies=FilesToCopy(41, limit_bytes=2**20, with_home=True)))
    assert list(copied.inputs) == [Input("session-41", 41)]
    assert copied.command[-7:] == [
        "1024", "session 41", "/inputs/session-41/checkpoint", "/checkpoint", "--", "serve", "notes",
    ]  # fmt: skip
