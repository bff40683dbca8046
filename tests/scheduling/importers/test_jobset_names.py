"""What the pods of a JobSet know: their index, and the host name of the first one."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from scheduling.importers.registry import convert
from scheduling.importers.report import Fate


def job_set(*scripts: str, replicas: int = 1, parallelism: int = 2, env: Any = None) -> str:
    jobs = [
        {
            "name": name,
            "replicas": replicas,
            "template": {
                "spec": {
                    "parallelism": parallelism,
                    "template": {
                        "spec": {
                            "restartPolicy": "Never",
                            "containers": [
                                {
                                    "name": "a",
                                    "image": "a/b:1",
                                    "command": ["sh", "-c", script],
                                    "env": env or [],
                                    "resources": {"limits": {"nvidia.com/gpu": 1}},
                                }
                            ],
                        }
                    },
                }
            },
        }
        for name, script in zip(("workers", "others"), scripts, strict=False)
    ]
    return yaml.safe_dump({"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "pt"},
                           "spec": {"replicatedJobs": jobs}})  # fmt: skip


RUN = "torchrun --master_addr pt-workers-0-0.pt --node_rank $JOB_COMPLETION_INDEX x.py"


@pytest.mark.parametrize(
    ("text", "index"),
    [
        (job_set(RUN), '"${FAIRLOT_ROLE_INDEX:-$RANK}"'),
        (job_set(RUN, replicas=3), '"$((${FAIRLOT_ROLE_INDEX:-$RANK} % 2))"'),
        (job_set("sleep 1", RUN), '"${FAIRLOT_ROLE_INDEX:-$((RANK - 2))}"'),
        (job_set("sleep 1", RUN, replicas=2), '"$((${FAIRLOT_ROLE_INDEX:-$((RANK - 4))} % 2))"'),
    ],
)
def test_pods_know_their_index_and_the_first_of_them(text: str, index: str) -> None:
    (work,) = convert(text).works
    assert (
        f"export JOB_COMPLETION_INDEX={index}\ntorchrun --master_addr $MASTER_ADDR --node_rank"
        in work.spec["command"]
    )


@pytest.mark.parametrize(
    "text",
    [
        job_set("run --peer pt-workers-0-1.pt"), job_set("run", "run --to pt-others-0-0.pt"),
        job_set("python -c 'x(\"pt-workers-0-0.pt\")'"),
        job_set("run", env=[{"name": "HOST", "value": "pt-workers-0-0"}]),
    ],
)  # fmt: skip
def test_a_host_name_that_does_not_exist_is_refused(text: str) -> None:
    refused = [line.text for line in convert(text).report if line.fate is Fate.REFUSED]
    assert len(refused) == 1
    assert "does not exist" in refused[0]


def test_other_names_and_commands_stay() -> None:
    (work,) = convert(
        job_set(
            "run my-pt-workers-0-0 pt-workers", env=[{"name": "MASTER_ADDR", "value": "pt-workers-0-0.pt"}]
        )
    ).works
    assert work.spec["command"] == "run my-pt-workers-0-0 pt-workers"
