"""Queries the GPU use of pods from a server with Prometheus' HTTP API.

The metrics usually come from NVIDIA's DCGM exporter, which labels each GPU with its `pod` and `namespace`. Prometheus
may set labels with these names itself. It then renames the exporter's labels to `exported_pod` and
`exported_namespace`.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, TypeAlias
from urllib.parse import urlencode

from accounting.notifications.safe_http import NotReachable, get

WINDOW = 60.0  # seconds that one query covers; queries come twice per window, so no gap remains
USUAL_QUERY = (
    "max by (namespace, pod, exported_namespace, exported_pod) (max_over_time(DCGM_FI_DEV_GPU_UTIL[$window]))"
)
MOST_BYTES = 32 * 1024 * 1024
# Names of pods: the Job's name, the index and a random suffix from the Job controller, which bare pods lack. Roles of a
# gang have Jobs of their own, whose names differ in their ends (see objects.job_name).
POD = re.compile(r"((?P<gang>fairlot-[a-z2-7]{8})(?:r\d+)?)-(\d+)(?:-[a-z0-9]+)?", re.ASCII)

# What the samples of jobs' metrics consist of: NVIDIA's DCGM exporter on the nodes, and the kubelet's cAdvisor. The
# label `metric` names those that PromQL leaves without a name.
SAMPLES_QUERY = (
    'label_replace(sum by (namespace, pod) (rate(container_cpu_usage_seconds_total{container!="",pod=~"fairlot-.+"}'
    '[2m])), "metric", "cpus", "", "")'
    ' or label_replace(sum by (namespace, pod) (container_memory_working_set_bytes{container!="",pod=~"fairlot-.+"}),'
    ' "metric", "memory", "", "")'
    ' or {__name__=~"DCGM_FI_DEV_GPU_UTIL|DCGM_FI_PROF_SM_ACTIVE|DCGM_FI_DEV_FB_USED|DCGM_FI_DEV_POWER_USAGE"}'
)
# The metric, the factor to its unit, and the highest value that is believed, by the name in Prometheus.
DCGM = {
    "DCGM_FI_DEV_GPU_UTIL": ("gpu_utilisation", 1.0, 100.0),
    "DCGM_FI_PROF_SM_ACTIVE": ("gpu_sm", 100.0, 100.0),
    "DCGM_FI_DEV_FB_USED": ("gpu_memory", 2.0**20, 1e15),
    "DCGM_FI_DEV_POWER_USAGE": ("gpu_power", 1.0, 1e5),
}
OF_PODS = {"cpus": 1e6, "memory": 1e15}  # the highest values that are believed
GPU = re.compile(r"[A-Za-z0-9.-]{1,100}/[A-Za-z0-9.-]{1,20}", re.ASCII)

# Maps (namespace, name of the Job) to the GPU use in percent of each worker, by index.
Busy: TypeAlias = Mapping[tuple[str, str], Mapping[int, float]]


def ask(url: str, query: str, *, to_private: bool) -> Busy:
    """Returns the highest GPU use, in percent, of each worker during the last WINDOW seconds.

    `url` is the address of the Prometheus server, and `query` is the PromQL query. `to_private` permits an address in a
    private network. Raises NotReachable if the server gives no usable answer.
    """
    asked = urlencode({"query": query.replace("$window", f"{WINDOW:.0f}s")})
    answer = get(f"{url.rstrip('/')}/api/v1/query?{asked}", to_private=to_private, most=MOST_BYTES)
    return read(answer)


def ask_samples(url: str, *, to_private: bool) -> Mapping[tuple[str, str], Mapping[str, float]]:
    """Returns the present values of the metrics of each gang, by (namespace, name of the Job), then by name of the
    metric (scheduling/metrics/names.py).

    Raises NotReachable if the server gives no usable answer.
    """
    asked = urlencode({"query": SAMPLES_QUERY})
    return read_samples(
        get(f"{url.rstrip('/')}/api/v1/query?{asked}", to_private=to_private, most=MOST_BYTES)
    )


def read_samples(answer: bytes) -> Mapping[tuple[str, str], Mapping[str, float]]:
    """Parses the answer to the query of `ask_samples`. Raises NotReachable if it is no instant vector."""
    found: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for labels, value in _vector(answer):
        named = _pod_of(labels)
        if named is None or not math.isfinite(value):
            continue
        values = found[str(labels.get("exported_namespace") or labels.get("namespace") or ""), named["gang"]]
        if (metric := str(labels.get("metric"))) in OF_PODS:
            values[metric] = values.get(metric, 0.0) + max(0.0, min(value, OF_PODS[metric]))
        elif (known := DCGM.get(str(labels.get("__name__")))) is not None:
            metric, factor, most = known
            part = labels.get("GPU_I_ID")
            gpu = f"{labels.get('Hostname')}/{labels.get('gpu')}{f'-{part}' if part else ''}"
            if GPU.fullmatch(gpu):
                values[f"{metric}@{gpu}"] = max(0.0, min(value * factor, most))
    return found


def read(answer: bytes) -> Busy:
    """Parses the answer to the query that `ask` sends. Raises NotReachable if the answer is not an instant vector of
    Prometheus."""
    found: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    for labels, percent in _vector(answer):
        _take(found, labels, percent)
    return found


def _vector(answer: bytes) -> list[tuple[Mapping[str, Any], float]]:
    """Returns the labels and the value of each element of an instant vector. Raises NotReachable."""
    try:
        content = json.loads(answer)
        if content["status"] != "success" or content["data"]["resultType"] != "vector":
            raise NotReachable(
                "The query must return an instant vector, but the server's answer has another type."
            )
        found = [(one["metric"], float(one["value"][1])) for one in content["data"]["result"]]
        if not all(isinstance(labels, dict) for labels, _ in found):
            raise TypeError
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError):
        raise NotReachable("The server's answer does not have the format of Prometheus.") from None
    return found


def _pod_of(labels: Mapping[str, Any]) -> re.Match[str] | None:
    return POD.fullmatch(str(labels.get("exported_pod") or labels.get("pod") or ""))


def _take(found: dict[tuple[str, str], dict[int, float]], labels: Mapping[str, Any], percent: float) -> None:
    named = _pod_of(labels)
    if named is None or not math.isfinite(percent):
        return
    workers = found[str(labels.get("exported_namespace") or labels.get("namespace") or ""), named[1]]
    index = int(named[3][:9])
    # The value is limited to 100, because in clusters where Prometheus scrapes pods a program can report any value.
    workers[index] = max(min(percent, 100.0), workers.get(index, 0.0))
