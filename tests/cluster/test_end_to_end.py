"""Tests a job from start to end in real containers: attach, submit, watch, suspend, resume on another GPU type,
bill."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from scheduling.backends.kubernetes import objects
from tests.cluster import deployed, machine
from tests.cluster.controlplane import ControlPlane
from tests.cluster.images import PYTHON
from tests.cluster.nodes import V100
from tests.cluster.realnode import RealNode, claim
from tests.proof.browser import People, Person
from tests.proof.conftest import chrome, people, portal  # noqa: F401 - fixtures
from tests.proof.portal import RunningPortal
from tests.proof.test_browser import check_the_training, chip, log_lines, raw_log
from tests.waiting import PATIENCE, wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.xdist_group("node"),
]

STEPS = 200
TRAIN = "python3 $FAIRLOT_EXAMPLES/digits/train.py --steps {steps} --seconds-per-step {pace}"
# Each attempt reads its pace from a file at its start. The first pace is slow, so that the job is preempted and its
# node drained long before its end.
PACE = '"$(cat $FAIRLOT_CHECKPOINT_DIR/pace 2>/dev/null || echo 1)"'
PRICES = {"A100": Decimal("2.50"), "V100": Decimal("1.20")}
SOON = PATIENCE * 1000  # milliseconds


@dataclass
class Machines:
    plane: ControlPlane
    nodes: dict[str, RealNode]  # by GPU type


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    """Yields two real nodes: one with four A100, the other with four V100."""
    try:
        machine.prepare()
    except machine.Unfit as unfit:
        pytest.skip(str(unfit))
    folder = Path(tempfile.mkdtemp(prefix="fairlot-end-"))
    try:
        with ExitStack() as stack:
            plane = stack.enter_context(ControlPlane(folder).started())
            nodes = {
                "A100": stack.enter_context(RealNode(plane, "real-0").started()),
                "V100": stack.enter_context(RealNode(plane, "real-1", product=V100).started()),
            }
            deployed.install(plane)
            yield Machines(plane, nodes)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_a_job_runs_in_containers_is_suspended_moves_and_is_billed(
    machines: Machines,
    people: People,  # noqa: F811 - the fixture
    portal: RunningPortal,  # noqa: F811 - the fixture
) -> None:
    ada = people.sign_in("ada")
    attach(ada.page, deployed.flattened(machines.plane.kubeconfig(deployed.FAIRLOT)))
    portal.scenario("hurry", cluster="lab", quantum=10)
    bob, charlie = people.sign_in("bob"), people.sign_in("charlie")
    job = submit(bob)
    give_it_room(machines)
    expect(chip(bob.page, "Running")).to_be_visible(timeout=SOON)

    bob.page.get_by_role("link", name="Log", exact=True).click()
    lines = log_lines(bob.page)
    expect(lines.filter(has_text=re.compile(r"^step 5 loss"))).to_have_count(1, timeout=SOON)

    # Charlie's jobs also want all GPUs, so Bob's job is suspended and resumed.
    rivals = [
        charlie.post("jobs", {"cluster": "lab", "spec": rival(name)})["id"]
        for name in ("one", "two", "three")
    ]
    give_it_room(machines)
    saved = lines.filter(has_text=re.compile(r"^stopping as ordered; saved step \d+$"))
    expect(saved).not_to_have_count(0, timeout=SOON)
    for number in rivals:
        charlie.post(f"jobs/{number}/cancel")
    resumed = lines.filter(has_text=re.compile(r"^resuming from the checkpoint of step \d+$"))
    expect(resumed).not_to_have_count(0, timeout=SOON)

    # The job's node is drained, and the job continues from its checkpoint on the other GPU type.
    hurry(machines, job)
    drain(ada.page, wait_for(lambda: node_of(bob, job), what="it has a machine"))
    expect(bob.page.locator("[data-log-state]")).to_have_text("Complete", timeout=SOON)
    expect(chip(bob.page, "Succeeded")).to_be_visible()
    shown = lines.all_text_contents()
    assert shown == raw_log(bob.page)
    check_the_training([line for line in shown if not line.startswith("Fairlot: ")], steps=STEPS)
    events = bob.get(f"jobs/{job}/events?limit=200")["items"]
    assert [one["text"] for one in events if one["code"] == "resumed"][:1] == ["Resumed from digits.npz"]
    check_the_bill(bob, job)


def attach(page: Page, kubeconfig: str) -> None:
    page.goto("/admin/clusters/")
    page.get_by_label("Name", exact=True).fill("lab")
    page.get_by_label("Kubeconfig", exact=True).fill(kubeconfig)
    page.get_by_text("Advanced").click()
    page.get_by_label("PersistentVolumeClaim for checkpoints").fill("checkpoints")
    page.get_by_role("button", name="Check and attach").click()
    expect(page.locator("[data-answers]")).to_contain_text("lab has been attached")


def submit(bob: Person) -> int:
    page = bob.page
    page.get_by_role("link", name="New job").click()
    page.get_by_label("Cluster", exact=True).select_option("lab")
    expect(page.get_by_text("A container image.")).to_be_visible()
    page.get_by_label("Environment", exact=True).fill(PYTHON)
    page.get_by_label("Name", exact=True).fill("digits: in a container")
    page.get_by_label("Command", exact=True).fill(TRAIN.format(steps=STEPS, pace=PACE))
    page.get_by_label("GPUs per worker", exact=True).fill("4")
    page.locator("#advanced > summary").click()
    page.get_by_label("Checkpoint pattern", exact=True).fill("digits.npz")
    page.get_by_role("button", name="Submit job").click()
    expect(page).to_have_url(re.compile(r"/jobs/\d+/$"))
    return int(page.url.rstrip("/").rsplit("/", 1)[1])


def rival(name: str) -> dict[str, object]:
    command = TRAIN.format(steps=100_000, pace=0.1)
    return {"name": name, "command": command, "environment": PYTHON, "gpus_per_worker": 4}


def give_it_room(machines: Machines) -> None:
    """Creates the PersistentVolumeClaim for checkpoints in a team's new namespace, which is a task of the cluster's
    admins."""
    api = machines.plane.admin

    def without() -> list[str]:
        claims = {one["metadata"]["namespace"] for one in api.items("/api/v1/persistentvolumeclaims")}
        teams = api.items("/api/v1/namespaces", labelSelector="fairlot.io/tenant")
        return [one["metadata"]["name"] for one in teams if one["metadata"]["name"] not in claims]

    [namespace] = wait_for(without, what="another team has a namespace")
    claim(machines.plane, namespace, "checkpoints")


def drain(page: Page, node: str) -> None:
    page.goto("/admin/nodes/")
    page.get_by_role("link", name=f"Drain {node}", exact=True).click()
    page.get_by_label("Why?").fill("new disks")
    page.locator("input[name=mode][value=now]").check()
    page.get_by_role("button", name=f"Drain {node}").click()
    expect(page.get_by_role("row").filter(has_text=node)).to_contain_text(re.compile("Drained|Draining"))


def hurry(machines: Machines, job: int) -> None:
    """Makes the training program run fast from the job's next attempt on, by a file in its checkpoint folder."""
    [folder] = (machines.plane.folder / "volumes").glob(f"*/checkpoints/{objects.job_name(job)}")
    (folder / "pace").write_text("0.05")


def node_of(person: Person, job: int) -> str | None:
    """Returns the name of the node where the job runs; None if it does not run."""
    clusters = {cluster["name"]: cluster for cluster in person.get("cluster")}
    nodes = clusters["lab"]["nodes"]
    return next((node["name"] for node in nodes if job in [held["job"] for held in node["held"]]), None)


def check_the_bill(bob: Person, job: int) -> None:
    """Asserts that the ledger bills each attempt at the price of its GPU type, and that both GPU types occur."""
    row = next(row for row in bob.get("usage?by=job")["rows"] if row["job_id"] == job)
    gpu_seconds, cost = Decimal(row["gpu_seconds"]), Decimal(row["cost"])
    assert gpu_seconds >= 4 * STEPS * Decimal("0.05")
    cheapest, dearest = (gpu_seconds * price / 3600 for price in sorted(PRICES.values()))
    assert cheapest < cost < dearest
