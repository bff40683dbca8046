"""How busy the GPUs of pods were, asked of a server that speaks Prometheus' HTTP API.

The usual source is NVIDIA's DCGM exporter, which tells of each GPU in which pod it is. What Prometheus' own labels
hide it puts behind exported_.
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

WINDOW = 60.0  # seconds that one question looks back; as it is asked twice as often, no gap stays between
USUAL_QUERY = (
    "max by (namespace, pod, exported_namespace, exported_pod) (max_over_time(DCGM_FI_DEV_GPU_UTIL[$window]))"
)
MOST_BYTES = 32 * 1024 * 1024
# As the Job controller names pods: the Job, the index, and something of its own; bare pods have no such.
POD = re.compile(r"(fairlot-[a-z2-7]+)-(\d+)(?:-[a-z0-9]+)?", re.ASCII)

# (namespace, name of the Job) with the percent of each worker by its index.
Busy: TypeAlias = Mapping[tuple[str, str], Mapping[int, float]]


def ask(url: str, query: str, *, to_private: bool) -> Busy:
    """The most percent at which GPUs of each worker were used in the window. Raises NotReachable."""
    asked = urlencode({"query": query.replace("$window", f"{WINDOW:.0f}s")})
    answer = get(f"{url.rstrip('/')}/api/v1/query?{asked}", to_private=to_private, most=MOST_BYTES)
    return read(answer)


def read(answer: bytes) -> Busy:
    """Raises NotReachable for what is no vector of Prometheus."""
    try:
        told = json.loads(answer)
        if told["status"] != "success" or told["data"]["resultType"] != "vector":
            raise NotReachable("It did not answer with an instant vector.")
        found: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
        for one in told["data"]["result"]:
            _take(found, one["metric"], float(one["value"][1]))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError):
        raise NotReachable("It did not answer as Prometheus does.") from None
    return found


def _take(found: dict[tuple[str, str], dict[int, float]], labels: Mapping[str, Any], percent: float) -> None:
    named = POD.fullmatch(str(labels.get("exported_pod") or labels.get("pod") or ""))
    if named is None or not math.isfinite(percent):
        return
    workers = found[str(labels.get("exported_namespace") or labels.get("namespace") or ""), named[1]]
    index = int(named[2][:9])
    # Where pods are scraped, a program can say what it likes.
    workers[index] = max(min(percent, 100.0), workers.get(index, 0.0))
