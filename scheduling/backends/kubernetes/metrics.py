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
# Names of pods: the Job's name, the index and a random suffix from the Job controller, which bare pods lack.
POD = re.compile(r"(fairlot-[a-z2-7]+)-(\d+)(?:-[a-z0-9]+)?", re.ASCII)

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


def read(answer: bytes) -> Busy:
    """Parses the answer to the query that `ask` sends. Raises NotReachable if the answer is not an instant vector of
    Prometheus."""
    try:
        content = json.loads(answer)
        if content["status"] != "success" or content["data"]["resultType"] != "vector":
            raise NotReachable(
                "The query must return an instant vector, but the server's answer has another type."
            )
        found: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
        for one in content["data"]["result"]:
            _take(found, one["metric"], float(one["value"][1]))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError):
        raise NotReachable("The server's answer does not have the format of Prometheus.") from None
    return found


def _take(found: dict[tuple[str, str], dict[int, float]], labels: Mapping[str, Any], percent: float) -> None:
    named = POD.fullmatch(str(labels.get("exported_pod") or labels.get("pod") or ""))
    if named is None or not math.isfinite(percent):
        return
    workers = found[str(labels.get("exported_namespace") or labels.get("namespace") or ""), named[1]]
    index = int(named[2][:9])
    # The value is limited to 100, because in clusters where Prometheus scrapes pods a program can report any value.
    workers[index] = max(min(percent, 100.0), workers.get(index, 0.0))
