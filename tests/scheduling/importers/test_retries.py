"""Numbers of retries keep their meaning in every format: the job starts again as often as the file says."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from scheduling.importers.kubernetes.retries import OF_SIGNALS
from scheduling.importers.registry import convert
from scheduling.importers.report import Conversion, Fate, WorkKind
from scheduling.spec.retries import Retries

POD = {"containers": [{"name": "c", "image": "a", "command": ["python", "x.py"]}]}
USUAL = {"times": 6}


def pod(policy: str = "", **more: Any) -> dict[str, Any]:
    return {"spec": POD | ({"restartPolicy": policy} if policy else {})} | more


def of_kind(kind: str, spec: dict[str, Any], version: str = "batch/v1") -> str:
    return yaml.safe_dump({"apiVersion": version, "kind": kind, "metadata": {"name": "n"}, "spec": spec})


def job(policy: str = "", **spec: Any) -> str:
    return of_kind("Job", {"template": pod(policy)} | spec)


def torch(policy: str, run: dict[str, Any], **more: Any) -> str:
    replicas = {"Worker": {"replicas": 2, "restartPolicy": policy, "template": pod()}}
    return of_kind(
        "PyTorchJob", {"pytorchReplicaSpecs": replicas, "runPolicy": run} | more, "kubeflow.org/v1"
    )


def volcano(**spec: Any) -> str:
    return of_kind("Job", {"tasks": [{"name": "t", "replicas": 2, "template": pod()}]} | spec,
                   "batch.volcano.sh/v1alpha1")  # fmt: skip


def job_set(**spec: Any) -> str:
    inner = {"name": "w", "template": {"spec": {"backoffLimit": 4, "template": pod("Never")}}}
    return of_kind("JobSet", {"replicatedJobs": [inner]} | spec, "jobset.x-k8s.io/v1alpha2")


def on_codes(action: str, operator: str, values: Any) -> dict[str, Any]:
    rule = {"action": action, "onExitCodes": {"operator": operator, "values": values}}
    lost = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    return {"rules": [lost, rule]}


def sky(recovery: Any) -> str:
    resources = {"accelerators": "A100:1", "job_recovery": recovery}
    return yaml.safe_dump({"name": "n", "resources": resources, "run": "python x.py"})


def stack(retry: Any) -> str:
    return yaml.safe_dump({"type": "task", "image": "a", "commands": ["python x.py"], "retry": retry})


def composed(**service: Any) -> str:
    return yaml.safe_dump({"services": {"s": {"image": "a", "command": "python x.py"} | service}})


OPENPAI = """
protocolVersion: 2
name: n
type: job
jobRetryCount: %s
prerequisites: [{name: i, type: dockerimage, uri: a}]
taskRoles:
  t: {instances: 1, dockerImage: i, resourcePerInstance: {gpu: 1}, commands: [python x.py]%s}
"""
POLYAXON = """
version: 1.1
kind: component
termination: {maxRetries: 3}
run: {kind: job, container: {image: a, command: [python, x.py]}}
"""
DETERMINED = "name: n\nentrypoint: python x.py\nsearcher: {name: single}\nmax_restarts: %s\n"
CHRONOS = '{"name": "n", "schedule": "R/2030-01-01T00:00:00Z/PT24H", "command": "python x.py", "retries": 2}'


def found_in(text: str) -> tuple[Any, Conversion]:
    found = convert(text)
    assert found.works, found.report
    given = found.works[0].spec.get("retries")
    return given, found


@pytest.mark.parametrize(
    ("text", "retries"),
    [
        (job(backoffLimit=3), {"times": 3}),
        (job("Never", backoffLimit=3), {"times": 3}),
        (job("OnFailure", backoffLimit=3), {"times": 3}),
        (job("OnFailure"), USUAL),
        (job("Never"), None),
        (job(backoffLimit=0), None),
        (job(backoffLimit=5000), {"times": 100}),
        (job(completions=3, completionMode="Indexed", backoffLimit=9, backoffLimitPerIndex=2), {"times": 2}),
        (of_kind("CronJob", {"schedule": "1 2 * * *", "jobTemplate": {"spec": {"backoffLimit": 2, "template": pod()}}}),
         {"times": 2}),
        (of_kind("Pod", POD | {"restartPolicy": "OnFailure"}, "v1"), USUAL),
        (torch("OnFailure", {"backoffLimit": 3}), {"times": 3}),
        (torch("OnFailure", {}), USUAL),
        (torch("Never", {"backoffLimit": 3}), None),
        (torch("ExitCode", {"backoffLimit": 3}), {"times": 3, "exit_codes": list(OF_SIGNALS)}),
        (torch("ExitCode", {}), {"times": 6, "exit_codes": list(OF_SIGNALS)}),
        (torch("Never", {}, elasticPolicy={"minReplicas": 1, "maxRestarts": 7}), {"times": 7}),
        (torch("OnFailure", {"backoffLimit": 3}, elasticPolicy={"maxRestarts": 7}), {"times": 3}),
        (torch("OnFailure", {}, elasticPolicy={"maxRestarts": 100}), {"times": 100}),
        (torch("OnFailure", {}, elasticPolicy={"maxRestarts": 0}), None),
        (torch("ExitCode", {}, elasticPolicy={"maxRestarts": 9}), {"times": 9, "exit_codes": list(OF_SIGNALS)}),
        (job_set(failurePolicy={"maxRestarts": 2}), {"times": 2}),
        (job_set(failurePolicy={"maxRestarts": 0}), {"times": 4}),
        (job_set(), {"times": 4}),
        (volcano(maxRetry=5), {"times": 5}),
        (volcano(policies=[{"event": "PodFailed", "action": "RestartJob"}]), {"times": 3}),
        (volcano(maxRetry=5, policies=[{"events": ["PodFailed"], "action": "RestartJob"}]), {"times": 5}),
        (volcano(policies=[{"event": "PodEvicted", "action": "RestartJob"}]), None),
        (job(backoffLimit=3, podFailurePolicy=on_codes("FailJob", "NotIn", [42, 137])),
         {"times": 3, "exit_codes": [42, 137]}),
        (job(backoffLimit=3, podFailurePolicy=on_codes("FailJob", "In", [42])), {"times": 3}),
        (job(backoffLimit=3, podFailurePolicy=on_codes("Count", "In", [42])), {"times": 3}),
        (job(backoffLimit=3, podFailurePolicy=on_codes("FailJob", "NotIn", [0, 300])), {"times": 3}),
        (job(backoffLimit=3, podFailurePolicy=on_codes("FailJob", "NotIn", [0, 130])),
         {"times": 3, "exit_codes": [130]}),
        (job("Never", backoffLimit=3, podFailurePolicy=on_codes("FailJob", "NotIn", [0])), None),
        (job("OnFailure", podFailurePolicy=on_codes("FailJob", "NotIn", [0])), None),
        (job(backoffLimit=3, podFailurePolicy={"rules": on_codes("FailJob", "In", [130])["rules"]
                                               + on_codes("FailJob", "NotIn", [0, 130, 137])["rules"]}),
         {"times": 3, "exit_codes": [137]}),
        (sky({"max_restarts_on_errors": 3, "strategy": "EAGER_NEXT_REGION"}), {"times": 3}),
        (sky({"recover_on_exit_codes": [34, 33]}), {"times": 6, "exit_codes": [33, 34]}),
        (sky({"recover_on_exit_codes": 33}), {"times": 6, "exit_codes": [33]}),
        (sky({"max_restarts_on_errors": 3, "recover_on_exit_codes": [33]}), {"times": 3}),
        (sky("FAILOVER"), None),
        (stack(True), USUAL),
        (stack(False), None),
        (stack({"on_events": ["error", "interruption"], "duration": "1h"}), USUAL),
        (stack({"on_events": ["no-capacity"], "duration": "1h"}), None),
        (composed(restart="on-failure:4"), {"times": 4}),
        (composed(restart="on-failure"), USUAL),
        (composed(restart="unless-stopped"), USUAL),
        (composed(restart="no"), None),
        (composed(deploy={"restart_policy": {"condition": "on-failure", "max_attempts": 2, "delay": "5s"}}),
         {"times": 2, "backoff_seconds": 5}),
        (composed(deploy={"restart_policy": {"condition": "any", "delay": "x", "window": "2m"}}), USUAL),
        (composed(deploy={"restart_policy": {"condition": "none"}}), None),
        (OPENPAI % (2, ""), {"times": 2}),
        (OPENPAI % (2, ", taskRetryCount: 1"), {"times": 1}),
        (OPENPAI % (-1, ""), {"times": 100}),
        (POLYAXON, {"times": 3}),
        (DETERMINED % 5, {"times": 5}),
        (CHRONOS, {"times": 2}),
        ("entrypoint: python x.py\nmax_retries: 3\nruntime_env: {}\n", {"times": 3}),
    ],
)  # fmt: skip
def test_a_program_that_fails_starts_again_as_often_as_the_file_says(text: str, retries: Any) -> None:
    given, found = found_in(text)
    assert given == retries
    Retries.model_validate(given or {})
    about = [line for line in found.report if line.target.startswith("retries")]
    assert about or "FAILOVER" in text or "no-capacity" in text or "PodEvicted" in text
    assert all(line.fate in {Fate.MAPPED, Fate.APPROXIMATED} for line in about)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (job("OnFailure", backoffLimit=3), "all workers start again, up to 3 times."),
        (job(backoffLimit=1), "all workers start again, once."),
        (job(backoffLimit=5000), "up to 100 times. More are not possible."),
        (job("OnFailure"), "The text says no number."),
        (job(completions=3, backoffLimit=2), "Here each member starts again this often."),
        (job("Never"), "Without a backoffLimit, Kubernetes would replace a failed pod 6 times."),
        (torch("Never", {"backoffLimit": 3}), "The restartPolicy is Never. A program that fails ends its job."),
        (job(backoffLimit=3, podFailurePolicy=on_codes("FailJob", "In", [42])), "none of those after which it does"),
        (job_set(failurePolicy={"maxRestarts": 2, "restartStrategy": "Recreate"}), "only maxRestarts"),
    ],
)  # fmt: skip
def test_the_report_says_what_became_of_a_number_of_retries(text: str, says: str) -> None:
    assert any(says in line.text for line in convert(text).report)


def test_services_are_always_started_again_and_have_no_retries() -> None:
    deployed = of_kind(
        "Deployment",
        {"template": {"spec": {"restartPolicy": "Always",
                               "containers": [POD["containers"][0] | {"ports": [{"containerPort": 8000}]}]}}},
        "apps/v1",
    )  # fmt: skip
    serving = (
        "resources: {accelerators: A100, job_recovery: {max_restarts_on_errors: 2}, ports: 8000}\nrun: x\n"
    )
    texts = (
        deployed,
        serving + "service: {readiness_probe: /, replicas: 1}\n",
        "type: service\nname: s\nimage: a\nport: 8000\ncommands: [x]\nretry: true\n",
        composed(restart="always", ports=["8000:8000"]),
        POLYAXON.replace("kind: job,", "kind: service, ports: [8000],"),
    )
    for text in texts:
        given, found = found_in(text)
        assert (found.works[0].kind, given) == (WorkKind.SERVICE, None)
