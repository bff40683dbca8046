"""A change that affects scheduling makes Fairlot run the next round soon, wherever in the code the change is made."""

import ast
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from accounting.actions import deactivate_user, reactivate_user, set_price, set_tickets
from fairshare.driver import Situation
from fairshare.model import Reason
from scheduling.clusters.actions import update_cluster
from scheduling.core import enqueue
from scheduling.jobs.actions import cancel_job
from scheduling.jobs.explain import explain
from scheduling.models import Cluster, Job, JobEvent, Lease, Node
from tests.scheduling.world import World, world
from tests.threads import let_go

ROOT = Path(__file__).resolve().parents[3]
VERB = re.compile(r"[a-z_]+\.[a-z_]+")
# Each expression that builds audit verbs, with the verbs that it builds.
PUT_TOGETHER = {
    "f'cluster.set_{field}'": {"cluster.set_bare_pods", "cluster.set_reachable"},
    "f'{kind}.{what}'": {"report.subscribe", "report.unsubscribe", "statement.subscribe", "statement.unsubscribe"},
}  # fmt: skip
# The verbs after which no round is requested, by reason.
NO_ROUND = {
    "rounds do not read it": {
        "budget.remove", "budget.set", "cluster.check", "cluster.metrics", "cluster.set_bare_pods",
        "cluster.set_reachable", "generation.set_weight", "idle_rule.remove", "idle_rule.set", "job.delete_files",
        "job.read_files", "job.idle_snooze", "code.upload", "announcement.change", "announcement.create",
        "announcement.withdraw", "invitation.create", "invitation.revoke",
        "list.choose_columns", "list.choose_view", "list.remove_view", "list.save_view",
        "login.fail", "login.lock_out", "login.refuse", "login.sign_in", "login.sign_out", "login.unlock",
        "node.exchange_gpus", "notification_channel.change", "notification_channel.create",
        "notification_channel.remove", "notification_rule.change", "notification_rule.create",
        "notification_rule.remove",
        "report.subscribe", "report.unsubscribe", "secret.create",
        "secret.delete", "secret.replace", "secret.reseal", "service.open", "session.keep", "session.open",
        "sharing.analyse", "sharing.analyse_again", "statement.subscribe", "statement.unsubscribe", "tenant.rename",
        "template.publish", "template.withdraw", "tenant.take_uid",
        "terminal.close", "terminal.open",
        "terminal_login.allow", "terminal_login.deny", "token.create", "token.revoke", "token.revoke_all",
        "user.describe", "user.reset_password",
        "user.set_portal_role", "user.set_preferences", "volume.grant", "volume.withdraw",
    },
    "nothing runs there yet, or any more": {
        "cluster.create", "cluster.detach", "generation.create", "generation.delete", "tenant.create",
        "tenant.delete", "user.create",
    },
    "it is of the past": {"cluster.import", "ledger.archive", "ledger.bring_back", "ledger.resume_sealing"},
    "what it grants or takes back has a verb of its own": {
        "request.approve", "request.ask", "request.decline", "request.end", "request.overdue", "request.withdraw",
    },
    "what it cancels has a verb of its own": {"job.idle_stop", "job.overlong", "session.stop"},
    "a job that no round has seen is due by itself": {"job.submit", "session.start"},
    "the service's next step submits and cancels": {
        "service.change", "service.create", "service.remove", "service.roll_back",
    },
    "the sweep's next step submits and cancels too": {
        "sweep.cancel", "sweep.create", "sweep.run_again", "sweep.stop",
    },
    "the pipeline's next step submits and cancels": {
        "pipeline.cancel", "pipeline.create", "pipeline.run_again",
    },
    "its jobs come when they are due": {
        "schedule.change", "schedule.create", "schedule.delete", "schedule.pause", "schedule.resume",
    },
    "the watcher asks, for what no event tells of as well": {"node.found", "node.gone", "node.seen"},
}  # fmt: skip


def test_every_audit_event_either_requests_a_round_or_is_listed_as_not() -> None:
    """Each audit verb is listed either in enqueue.py, as a change that requests a round, or in NO_ROUND."""
    silent = [verb for verbs in NO_ROUND.values() for verb in verbs]
    placed = [*silent, *enqueue.CHANGES_EVERY_CLUSTER, *enqueue.CHANGES_ITS_CLUSTER]
    assert len(placed) == len(set(placed)), "a verb is in two places"
    assert set(placed) == set(verbs_written())


def verbs_written() -> Iterator[str]:
    """Yields the verbs that the source code passes to the audit trail, as `verb=` or to a function with a parameter
    `verb`."""
    for room in ("accounting", "scheduling", "portal"):
        for path in (ROOT / room).rglob("*.py"):
            if "migrations" not in path.parts:
                yield from verbs_in(ast.parse(path.read_text()))


def verbs_in(tree: ast.Module) -> Iterator[str]:
    takes = {
        one.name: names.index("verb")
        for one in tree.body
        if isinstance(one, ast.FunctionDef) and "verb" in (names := [each.arg for each in one.args.args])
    }
    for node in ast.walk(tree):
        match node:
            case (
                ast.keyword(arg="verb", value=value) | ast.Assign(targets=[ast.Name(id="verb")], value=value)
            ):
                yield from literals(value)
            case ast.Call(func=ast.Name(id=name), args=args) if takes.get(name, len(args)) < len(args):
                yield from literals(args[takes[name]])


def literals(value: ast.expr) -> Iterator[str]:
    if isinstance(value, ast.JoinedStr):
        yield from PUT_TOGETHER[ast.unparse(value)]
        return
    for node in ast.walk(value):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and VERB.fullmatch(node.value):
            yield node.value


def wanted(lab: World) -> bool:
    return Cluster.objects.get(pk=lab.cluster.pk).round_wanted_at is not None


@pytest.fixture
def lab(db: None) -> World:
    lab = world(v100=4)
    for _ in range(3):
        lab.submit(lab.people.bob, lab.people.astro, gpus=4)
    lab.quantum()
    assert not wanted(lab)
    return lab


def test_an_admins_change_of_tickets_asks_for_a_round_of_every_attached_cluster(lab: World) -> None:
    gone = Cluster.objects.create(name="gone", detached_at=timezone.now())
    other = Cluster.objects.create(name="other")
    set_tickets(actor=lab.people.ada, tenant=lab.people.astro, tickets=300)
    asked = Cluster.objects.filter(round_wanted_at__isnull=False)
    assert set(asked.values_list("pk", flat=True)) == {lab.cluster.pk, other.pk}
    assert gone.round_wanted_at is None


def test_changes_of_a_rounds_input_request_a_round(lab: World) -> None:
    people = lab.people
    waiting = Job.objects.filter(cluster=lab.cluster).waiting().last()
    assert waiting is not None
    changes: list[Any] = [
        lambda: set_price(actor=people.ada, generation=people.v100, per_gpu_hour=Decimal("2.5")),
        lambda: update_cluster(actor=people.ada, cluster=lab.cluster, trading=False),
        lambda: deactivate_user(actor=people.ada, user=people.bob),
        lambda: reactivate_user(actor=people.ada, user=people.bob),
        lambda: cancel_job(actor=people.bob, job=waiting),
    ]
    for change in changes:
        Cluster.objects.update(round_wanted_at=None)
        change()
        assert wanted(lab)


def test_a_round_keeps_requests_made_while_it_decided(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = world(v100=4)
    lab.submit(lab.people.bob, lab.people.astro)
    decide = Situation.decide

    def meanwhile(*args: Any) -> Any:
        with ThreadPoolExecutor(1) as pool:
            change = {"actor": lab.people.ada, "tenant": lab.people.astro, "tickets": 300}
            pool.submit(let_go, lambda: set_tickets(**change)).result(timeout=30)
        return decide(*args)

    monkeypatch.setattr(Situation, "decide", meanwhile)
    lab.quantum()
    assert wanted(lab)
    monkeypatch.setattr(Situation, "decide", decide)
    lab.fill()
    assert not wanted(lab)


def close_nodes_while_deciding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closes all nodes after each round has decided and before it acts, as if an operator had cordoned them at this
    moment."""
    decide = Situation.decide

    def meanwhile(*args: Any) -> Any:
        found = decide(*args)
        Node.objects.update(state=Node.State.CLOSED, state_reason="cordoned")
        return found

    monkeypatch.setattr(Situation, "decide", meanwhile)


def test_a_picked_job_whose_gpus_are_taken_says_so_and_is_retried(
    db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = world(v100=4)
    job = lab.submit(lab.people.bob, lab.people.astro, gpus=4)
    with monkeypatch.context() as patch:
        close_nodes_while_deciding(patch)
        lab.quantum()
        job.refresh_from_db()
        told = explain(job)
        assert job.reason == Reason.PLACE_LOST
        assert told.sentence == (
            "The job was assigned 4 GPUs on the node v100-0, but could not start there: the node is closed (cordoned)."
            " The next round chooses other GPUs."
        )
        assert not told.never
        assert wanted(lab)
        Node.objects.update(state=Node.State.READY)
        lab.fill()
        assert not wanted(lab), "what was in vain twice waits for the quantum"
        assert JobEvent.objects.filter(kind=JobEvent.PLACE_LOST).count() == 1
    Node.objects.update(state=Node.State.READY)
    lab.fill()
    job.refresh_from_db()
    assert (job.state, job.reason) == (Job.State.STARTING, 0)


def test_gangs_on_a_closed_node_continue_as_no_other_could_start_there(db: None) -> None:
    lab = world(v100=4)
    old = lab.submit(lab.people.bob, lab.people.astro, gpus=4)
    lab.fill()
    lab.carry_out()
    Node.objects.update(state=Node.State.CLOSED, state_reason="cordoned")
    new = lab.submit(lab.people.charlie, lab.people.bio, gpus=4)
    for _ in range(3):
        lab.contest(old)
    new.refresh_from_db()
    assert lab.states([old]) == [Job.State.RUNNING]
    assert (new.state, new.reason) == (Job.State.QUEUED, Reason.NODES_AWAY)
    Node.objects.update(state=Node.State.READY)
    lab.age(lab.lease(old), timedelta(hours=1).total_seconds())
    lab.contest(old)
    assert lab.lease(new).state == Lease.State.RESERVED
