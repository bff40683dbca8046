"""Asks a server with Prometheus' HTTP API how busy the GPUs of pods were.

The usual source is NVIDIA's DCGM exporter, which reports the pod of each GPU. Where Prometheus' own labels hide
those of the exporter, it prefixes the latter with exported_.
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

WINDOW = 60.0  # seconds that one query covers; queries come twice as often, so no gap remains
USUAL_QUERY = (
    "max by (namespace, pod, exported_namespace, exported_pod) (max_over_time(DCGM_FI_DEV_GPU_UTIL[$window]))"
)
MOST_BYTES = 32 * 1024 * 1024
# Names of pods: the Job, the index and a random part from the Job controller, which bare pods do not have.
POD = re.compile(r"(fairlot-[a-z2-7]+)-(\d+)(?:-[a-z0-9]+)?", re.ASCII)

# (namespace, name of the Job) mapped to each worker's percentage by its index.
Busy: TypeAlias = Mapping[tuple[str, str], Mapping[int, float]]


def ask(url: str, query: str, *, to_private: bool) -> Busy:
    """Returns the highest GPU use of each worker in the window, in percent. Raises NotReachable."""
    asked = urlencode({"query": query.replace("$window", f"{WINDOW:.0f}s")})
    answer = get(f"{url.rstrip('/')}/api/v1/query?{asked}", to_private=to_private, most=MOST_BYTES)
    return read(answer)


def read(answer: bytes) -> Busy:
    """Parses an answer. Raises NotReachable for anything but an instant vector of Prometheus."""
    try:
        content = json.loads(answer)
        if content["status"] != "success" or content["data"]["resultType"] != "vector":
            raise NotReachable("It did not answer with an instant vector.")
        found: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
        for one in content["data"]["result"]:
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
    # Where pods are scraped, a program can report any value.
    workers[index] = max(min(percent, 100.0), workers.get(index, 0.0))
