"""Fairlot reads from a cluster's Prometheus server, through its HTTP API, how much the held GPUs are used."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from accounting.core.clock import now_from_database
from accounting.core.errors import NotAllowed, Refused
from accounting.models import AuditEvent
from accounting.notifications.safe_http import NotReachable, get
from scheduling import tasks
from scheduling.backends.kubernetes import metrics
from scheduling.backends.kubernetes.objects import job_name, pod_name
from scheduling.clusters.metrics import set_metrics_source
from scheduling.metrics.reading import read_metrics_of
from scheduling.models import Cluster, ClusterAccess, GpuUse, IdleStretch, Job, MetricsSource
from tests.scheduling.world import World, start, world


@dataclass
class Prometheus:
    """A stand-in for a Prometheus server, with the part of the HTTP API that Fairlot uses."""

    url: str = ""
    series: list[tuple[dict[str, str], str]] = field(default_factory=list)
    samples: list[tuple[dict[str, str], str]] = field(default_factory=list)  # of the metrics of jobs
    asked: list[str] = field(default_factory=list)
    instead: tuple[int, bytes] | None = None

    def answer(self, path: str) -> tuple[int, bytes]:
        parts = urlsplit(path)
        if parts.path != "/prometheus/api/v1/query":
            return 404, b"not found"
        [query] = parse_qs(parts.query)["query"]
        wants_samples = query == metrics.SAMPLES_QUERY
        self.asked += [] if wants_samples else [query]
        series = self.samples if wants_samples else self.series
        result = [{"metric": labels, "value": [1767225600.123, value]} for labels, value in series]
        told = {"status": "success", "data": {"resultType": "vector", "result": result}}
        return self.instead or (200, json.dumps(told).encode())


@pytest.fixture
def prometheus() -> Iterator[Prometheus]:
    plays = Prometheus()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, body = plays.answer(self.path)
            self.send_response(code)
            self.send_header("Location", "/prometheus/api/v1/query?query=elsewhere")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Discards the request log, which would clutter the test's output."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        plays.url = f"http://localhost:{server.server_port}/prometheus"
        yield plays
        server.shutdown()
        thread.join()


@pytest.fixture
def lab(db: None, settings) -> World:
    """Returns a world with one V100 node; Fairlot may read metrics from private addresses."""
    settings.FAIRLOT_METRICS_TO_PRIVATE = True
    return world(v100=8)


def attached(lab: World) -> Cluster:
    """Turns the lab's cluster into an attached Kubernetes cluster, and returns it. A test must start its jobs before it
    calls this function."""
    Cluster.objects.filter(pk=lab.cluster.pk).update(backend=Cluster.Backend.KUBERNETES)
    ClusterAccess.objects.create(cluster=lab.cluster, sealed_kubeconfig=b"-", server="https://lab:6443")
    lab.cluster.refresh_from_db()
    return lab.cluster


def running(lab: World, **fields: Any) -> Job:
    """Returns a job whose attempt began two minutes ago."""
    job = start(lab, **fields)
    lab.age(lab.lease(job), 120)
    return job


def of(job: Job, index: int, percent: str, **labels: str) -> tuple[dict[str, str], str]:
    pod = f"{job_name(job.pk)}-{index}-x7k2p"
    return {"namespace": f"fairlot-{job.tenant_id}", "pod": pod} | labels, percent


def test_a_gang_is_idle_if_no_worker_uses_its_gpus(lab: World, prometheus: Prometheus) -> None:
    idle, busy, partly = (running(lab, gpus=1, workers=2) for _ in range(3))
    set_metrics_source(actor=lab.people.ada, cluster=attached(lab), url=prometheus.url + "/")
    prometheus.series = [
        of(idle, 0, "0"), of(idle, 1, "0"),
        of(busy, 0, "0"), of(busy, 1, "93"), of(busy, 1, "40"),
        of(partly, 0, "0"),
    ]  # fmt: skip
    tasks.measure_use()
    assert prometheus.asked == [metrics.USUAL_QUERY.replace("$window", "60s")]
    uses = {use.job_id: use for use in GpuUse.objects.all()}
    assert uses.keys() == {
        idle.pk,
        busy.pk,
    }  # `partly` is missing, because one of its workers has no measurement
    assert (uses[idle.pk].idle_since is None, uses[busy.pk].idle_since is None) == (False, True)
    assert (uses[busy.pk].percent, uses[busy.pk].measure) == (46.5, "gpu")
    stretch = IdleStretch.objects.get()
    lasted = stretch.during.upper - stretch.during.lower
    assert timedelta(seconds=30) < lasted <= timedelta(seconds=60)
    prometheus.series[0] = of(idle, 0, "1")
    tasks.measure_use()
    assert GpuUse.objects.get(job=idle).idle_since is None


def test_looks_that_overlap_are_one_stretch(lab: World, prometheus: Prometheus) -> None:
    job = running(lab)
    set_metrics_source(actor=None, cluster=attached(lab), url=prometheus.url)
    prometheus.series = [of(job, 0, "0")]
    for _ in range(3):
        tasks.measure_use()
    assert IdleStretch.objects.count() == 1
    assert GpuUse.objects.get().idle_for >= timedelta(seconds=55)


def test_until_a_turn_is_older_than_the_window_it_is_not_idle(lab: World, prometheus: Prometheus) -> None:
    """A job is not reported as idle until its attempt is older than the window over which Fairlot reads metrics.

    Earlier metrics may belong to the pods of the previous attempt, which have the same names.
    """
    idle, busy = start(lab), start(lab)
    for job in (idle, busy):
        lab.age(lab.lease(job), 55)
    set_metrics_source(actor=None, cluster=attached(lab), url=prometheus.url)
    prometheus.series = [of(idle, 0, "0"), of(busy, 0, "80")]
    tasks.measure_use()
    assert [use.job_id for use in GpuUse.objects.all()] == [busy.pk]
    assert not IdleStretch.objects.exists()
    lab.age(lab.lease(idle), 6)
    tasks.measure_use()
    stretch = IdleStretch.objects.get()
    assert stretch.during.lower >= lab.lease(idle).running_from


def test_labels_that_prometheus_has_moved_and_bare_pods_are_understood(
    lab: World, prometheus: Prometheus
) -> None:
    job = running(lab)
    moved = {"exported_namespace": f"fairlot-{job.tenant_id}", "exported_pod": pod_name(job.pk)}
    found = metrics.read(
        json.dumps(
            {
                "status": "success",
                "data": {
                    "resultType": "vector",
                    "result": [
                        {
                            "metric": {"namespace": "gpu", "pod": "dcgm-exporter-7xk", **moved},
                            "value": [0, "7"],
                        },
                        {"metric": {"namespace": "gpu", "pod": "dcgm-exporter-7xk"}, "value": [0, "9"]},
                        *(
                            {
                                "metric": {**moved, "exported_pod": pod_name(job.pk + 1)},
                                "value": [0, no_percent],
                            }
                            for no_percent in ("NaN", "+Inf", "-Inf")
                        ),
                    ],
                },
            }
        ).encode()
    )
    assert found == {(f"fairlot-{job.tenant_id}", job_name(job.pk)): {0: 7.0}}


def test_the_samples_of_a_gang_are_those_of_all_its_roles(lab: World, prometheus: Prometheus) -> None:
    job = running(lab)
    set_metrics_source(actor=None, cluster=attached(lab), url=prometheus.url)
    prometheus.samples = [
        ({"namespace": f"fairlot-{job.tenant_id}", "pod": f"{job_name(job.pk, part)}-{rank}-x7k2p"} | labels, value)
        for part, rank, value, labels in (
            (0, 0, "0.5", {"metric": "cpus"}), (1, 0, "2", {"metric": "cpus"}), (1, 1, "3", {"metric": "cpus"}),
            (1, 0, "80", {"__name__": "DCGM_FI_DEV_GPU_UTIL", "Hostname": "n1", "gpu": "0"}),
            (2, 0, "60", {"__name__": "DCGM_FI_DEV_GPU_UTIL", "Hostname": "n2", "gpu": "0"}),
        )
    ]  # fmt: skip
    tasks.measure_use()
    found = {one.name: one.whole.mean for one in read_metrics_of([job.pk])[job.pk].series}
    assert found == {"cpus": 5.5, "gpu_utilisation@n1/0": 80.0, "gpu_utilisation@n2/0": 60.0}


def test_a_job_of_another_namespace_belongs_to_others(lab: World, prometheus: Prometheus) -> None:
    job = running(lab)
    set_metrics_source(actor=None, cluster=attached(lab), url=prometheus.url)
    prometheus.series = [of(job, 0, "0", namespace="fairlot-999")]
    tasks.measure_use()
    assert not GpuUse.objects.exists()


def vector(series: Any) -> tuple[int, bytes]:
    told = {"status": "success", "data": {"resultType": "vector", "result": [series]}}
    return 200, json.dumps(told).encode()


@pytest.mark.parametrize(
    ("answer", "said"),
    [((200, b"<h1>intranet</h1>"), "the format of Prometheus"), ((200, b"[]"), "the format of Prometheus"),
     ((200, b'{"status": "success", "data": {"resultType": "scalar"}}'), "instant vector"),
     *((vector(series), "the format of Prometheus") for series in (
         {"metric": [], "value": [0, "1"]}, {"metric": "fairlot", "value": [0, "1"]},
         {"metric": None, "value": [0, "1"]}, {"metric": {}, "value": [0, 10**400]},
         {"metric": {}, "value": [0]}, {"metric": {}, "value": [0, "much"]}, [], 7)),
     ((400, b"{}"), "400"), ((302, b""), "302"), ((200, b"x" * 2000), "too long")],
)  # fmt: skip
def test_an_unexpected_metrics_answer_measures_nothing_and_is_reported(
    lab: World, prometheus: Prometheus, answer: tuple[int, bytes], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "MOST_BYTES", 1000)
    running(lab)
    set_metrics_source(actor=None, cluster=attached(lab), url=prometheus.url)
    prometheus.instead = answer
    tasks.measure_use()
    source = MetricsSource.objects.get()
    assert said in source.trouble
    assert source.asked_at <= now_from_database()
    assert not GpuUse.objects.exists()
    prometheus.instead = None
    tasks.measure_use()
    source.refresh_from_db()
    assert source.trouble == ""


def test_private_networks_are_asked_only_where_the_setting_says_so(
    lab: World, prometheus: Prometheus, settings
) -> None:
    settings.FAIRLOT_METRICS_TO_PRIVATE = False
    with pytest.raises(Refused, match="https"):
        set_metrics_source(actor=None, cluster=attached(lab), url=prometheus.url)
    port = urlsplit(prometheus.url).port
    for host in ("localhost", "127.0.0.1", "[::1]"):
        with pytest.raises(NotReachable, match=r"private network|no IP address"):
            get(f"https://{host}:{port}/", to_private=False, most=10)
    assert prometheus.asked == []


def test_admins_alone_say_where_it_is_asked(lab: World, prometheus: Prometheus) -> None:
    people = lab.people
    with pytest.raises(Refused, match="not an attached Kubernetes"):
        set_metrics_source(actor=people.ada, cluster=lab.cluster, url=prometheus.url)
    cluster = attached(lab)
    for who in (people.olga, people.alice):
        with pytest.raises(NotAllowed):
            set_metrics_source(actor=who, cluster=cluster, url=prometheus.url)
    for url in ("ftp://x", "https://user:secret@x", "nothing"):
        with pytest.raises(Refused) as refused:
            set_metrics_source(actor=people.ada, cluster=cluster, url=url)
        assert refused.value.field == "url"
    set_metrics_source(actor=people.ada, cluster=cluster, url=prometheus.url, query="my_metric[$window]")
    assert MetricsSource.objects.get().query == "my_metric[$window]"
    assert set_metrics_source(actor=people.ada, cluster=cluster, url="") is None
    assert not MetricsSource.objects.exists()
    assert AuditEvent.objects.filter(verb="cluster.metrics").count() == 2


def test_the_metrics_of_each_running_job_are_stored(lab: World, prometheus: Prometheus) -> None:
    job, other = running(lab, gpus=2), running(lab, gpus=1)
    set_metrics_source(actor=lab.people.ada, cluster=attached(lab), url=prometheus.url)

    def gpu(name: str, index: int, value: str, **labels: str) -> tuple[dict[str, str], str]:
        return of(job, 0, value, __name__=name, Hostname="n1", gpu=str(index), **labels)

    prometheus.samples = [
        gpu("DCGM_FI_DEV_GPU_UTIL", 0, "40"), gpu("DCGM_FI_DEV_GPU_UTIL", 1, "1e9"),
        gpu("DCGM_FI_PROF_SM_ACTIVE", 0, "0.25"), gpu("DCGM_FI_DEV_FB_USED", 0, "1024"),
        gpu("DCGM_FI_DEV_POWER_USAGE", 1, "NaN"), gpu("DCGM_FI_DEV_POWER_USAGE", 0, "300.5"),
        gpu("DCGM_FI_PROF_SM_ACTIVE", 0, "0.5", GPU_I_ID="3"), gpu("SOMETHING_ELSE", 0, "1"),
        of(job, 0, "1.5", metric="cpus"), of(job, 1, "2", metric="cpus"), of(job, 0, "-1", metric="memory"),
        of(other, 0, "7", __name__="DCGM_FI_DEV_GPU_UTIL", Hostname="x" * 500, gpu="0"),
        ({"namespace": "elsewhere", "pod": f"{job_name(job.pk)}-0", "metric": "memory"}, "5"),
    ]  # fmt: skip
    for _ in range(2):  # both within the same window, or the second in a later one
        tasks.measure_use()
    found = {one.name: one.whole.mean for one in read_metrics_of([job.pk])[job.pk].series}
    assert found == {
        "gpu_utilisation@n1/0": 40.0, "gpu_utilisation@n1/1": 100.0, "gpu_sm@n1/0": 25.0,
        "gpu_memory@n1/0": 2.0**30, "gpu_power@n1/0": 300.5, "gpu_sm@n1/0-3": 50.0, "cpus": 3.5, "memory": 0.0,
    }  # fmt: skip
    assert other.pk not in read_metrics_of([other.pk])
    prometheus.instead = 200, b"{}"
    tasks.measure_use()
    assert MetricsSource.objects.get().trouble
