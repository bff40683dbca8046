"""Admins attach clusters, unusual answers of API servers give clear errors, and a cluster with unfinished jobs cannot
be detached."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, connections, transaction

from accounting.core.encryption import seal
from accounting.core.errors import NotAllowed, Refused
from accounting.models import LedgerTransaction
from scheduling.backends.base import End, Phase
from scheduling.clusters.attaching import attach_cluster, check_cluster, detach_cluster, replace_kubeconfig
from scheduling.core.locks import lock_schedule
from scheduling.jobs.submitting import submit_job
from scheduling.models import Cluster, ClusterAccess, Job, Round, ShareBalance, ShareInterval, Trade
from scheduling.spec.job_spec import JobSpec
from scheduling.tasks import check_clusters, run_due_rounds
from tests.make import Cast, cast
from tests.scheduling.stand_in import TOKEN, Answer, StandIn, stand_in
from tests.scheduling.world import World
from tests.waiting import wait_for

BEYOND = {"secrets", "users", "clusterrolebindings"}


@pytest.fixture(scope="module")
def plays(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    with stand_in(tmp_path_factory.mktemp("stand-in")) as running:
        yield running


@pytest.fixture
def api_server(plays: StandIn) -> StandIn:
    plays.instead, plays.identity, plays.version = None, "the-uid-of-kube-system", "v1.36.3"
    plays.allows = lambda right: right["verb"] != "*" and right["resource"] not in BEYOND
    plays.asked.clear()
    plays.tokens.clear()
    return plays


# --- what API servers answer -------------------------------------------------------------------


@pytest.fixture
def people(transactional_db: None) -> Cast:
    return cast()


def attach(api_server: StandIn, people: Cast, **changes: Any) -> Cluster:
    arguments = {"actor": people.ada, "name": "east", "kubeconfig": api_server.kubeconfig()} | changes
    return attach_cluster(**arguments)


def test_a_redirect_is_not_followed_so_that_the_token_goes_nowhere_else(
    api_server: StandIn, people: Cast, tmp_path: Path
) -> None:
    with stand_in(tmp_path) as elsewhere:
        api_server.instead = Answer(307, b"{}", {"Location": f"{elsewhere.server}/version"})
        with pytest.raises(Refused, match="redirects to another address"):
            attach(api_server, people)
        assert elsewhere.asked == []
    assert api_server.tokens == {f"Bearer {TOKEN}"}


@pytest.mark.parametrize(
    ("answer", "said"),
    [(Answer(200, b"<h1>intranet</h1>"), "answer was incomplete"), (Answer(200, b"{}"), "not a Kubernetes"),
     (Answer(502, b"<h1>intranet</h1>"), r"error 502"), (Answer(429, b"{}"), "overloaded"),
     (Answer(403, b'{"reason": "Forbidden"}'), "refuses every request of this user")],
)  # fmt: skip
def test_unexpected_answers_are_explained_without_quoting_them(
    api_server: StandIn, people: Cast, answer: Answer, said: str
) -> None:
    api_server.instead = answer
    with pytest.raises(Refused, match=said) as refused:
        attach(api_server, people)
    assert "intranet" not in refused.value.message
    assert not Cluster.objects.exists()


def test_an_old_kubernetes_is_refused_as_too_old(api_server: StandIn, people: Cast) -> None:
    api_server.version = "v1.27.4-gke.900"
    assert "v1.27.4-gke.900) is too old" in attach(api_server, people).access.trouble


def test_an_unknown_name_is_reported(api_server: StandIn, people: Cast) -> None:
    with pytest.raises(Refused, match="its name cannot be resolved"):
        attach(api_server, people, kubeconfig=api_server.kubeconfig(server="https://k.invalid:6443"))


# --- who may, and when -------------------------------------------------------------------------


def test_only_admins_attach_and_detach_and_operators_check(api_server: StandIn, people: Cast) -> None:
    with pytest.raises(NotAllowed):
        attach(api_server, people, actor=people.olga)
    assert api_server.asked == []  # only an admin's request makes the portal connect to an address
    cluster = attach(api_server, people)
    for refused in (detach_cluster, check_cluster):
        with pytest.raises(NotAllowed):
            refused(actor=people.alice, cluster=cluster)
    with pytest.raises(NotAllowed):
        detach_cluster(actor=people.olga, cluster=cluster)
    with pytest.raises(NotAllowed):
        replace_kubeconfig(actor=people.olga, cluster=cluster, kubeconfig=api_server.kubeconfig())
    check_cluster(actor=people.olga, cluster=cluster)


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"name": " "}, "name"), ({"name": "a/b"}, "name"), ({"namespace_prefix": "Big"}, "namespace_prefix"),
     ({"writes_per_second": float("nan")}, "writes_per_second"), ({"writes_at_once": 0}, "writes_at_once"),
     ({"kubeconfig": "  "}, "kubeconfig"), ({"kubeconfig": "a: b"}, "kubeconfig")],
)  # fmt: skip
def test_an_invalid_schedule_is_refused_beside_its_field(
    api_server: StandIn, people: Cast, changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(Refused) as refused:
        attach(api_server, people, **changes)
    assert refused.value.field == field
    assert api_server.asked == []


def test_nothing_is_asked_of_the_network_inside_a_transaction(
    api_server: StandIn, people: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside: list[bool] = []
    answer = StandIn.answer
    main = connections[
        "default"
    ]  # the connection of this thread, because the stand-in answers in another thread

    def noted(self: StandIn, path: str, said: dict[str, Any]) -> Answer:
        inside.append(main.in_atomic_block)
        return answer(self, path, said)

    monkeypatch.setattr(StandIn, "answer", noted)
    cluster = attach(api_server, people)
    check_cluster(actor=people.ada, cluster=cluster)
    replace_kubeconfig(actor=people.ada, cluster=cluster, kubeconfig=api_server.kubeconfig())
    assert len(inside) > 20
    assert not any(inside)


def test_without_its_key_a_kubeconfig_is_trouble_until_it_is_given_again(
    api_server: StandIn, people: Cast, settings: Any
) -> None:
    cluster = attach(api_server, people)
    settings.FAIRLOT_SEALING_KEYS = ["another-" * 8]
    assert "put that key back" in check_cluster(actor=people.ada, cluster=cluster).trouble
    given = replace_kubeconfig(actor=people.ada, cluster=cluster, kubeconfig=api_server.kubeconfig())
    assert given.trouble == ""
    settings.FAIRLOT_SEALING_KEYS = []
    with pytest.raises(Refused, match="set FAIRLOT_SEALING_KEYS"):
        replace_kubeconfig(actor=people.ada, cluster=cluster, kubeconfig=api_server.kubeconfig())


def test_a_check_that_a_new_kubeconfig_overtook_says_nothing(
    api_server: StandIn, people: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = attach(api_server, people)

    def late(self: StandIn, path: str, said: dict[str, Any]) -> Answer:
        monkeypatch.undo()
        replace_kubeconfig(actor=people.ada, cluster=cluster, kubeconfig=api_server.kubeconfig())
        connection.close()  # closes the database connection of the stand-in's thread
        return Answer(401, b"{}")

    monkeypatch.setattr(StandIn, "answer", late)
    check_cluster(actor=people.ada, cluster=cluster)
    assert ClusterAccess.objects.get().trouble == ""


def test_a_look_at_a_cluster_that_is_detached_meanwhile_is_no_trouble(
    api_server: StandIn, people: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = attach(api_server, people)

    def late(self: StandIn, path: str, said: dict[str, Any]) -> Answer:
        monkeypatch.undo()
        detach_cluster(actor=people.ada, cluster=cluster)
        connection.close()  # closes the database connection of the stand-in's thread
        return Answer(401, b"{}")

    monkeypatch.setattr(StandIn, "answer", late)
    check_clusters()
    assert not ClusterAccess.objects.exists()


def test_the_one_that_was_looked_at_longest_ago_is_asked_first(
    api_server: StandIn, people: Cast, tmp_path: Path
) -> None:
    """The cluster whose last check is longest ago is checked first. So clusters that time out do not keep the others
    waiting."""
    order: list[str] = []
    with stand_in(tmp_path) as other:
        other.identity = "another"
        attach(api_server, people)
        attach(other, people, name="west")
        check_cluster(actor=None, cluster=Cluster.objects.get(name="east"))
        for name, server in (("east", api_server), ("west", other)):
            server.asked = Told(order, name)
        check_clusters()
    api_server.asked = []
    assert list(dict.fromkeys(order)) == ["west", "east"]


class Told(list[str]):
    """Stands in for a server's list of requests. For each request it appends only the server's name to `order`.

    Several servers share `order`, so tests see in which order the servers were asked.
    """

    def __init__(self, order: list[str], name: str) -> None:
        super().__init__()
        self.order, self.name = order, name

    def append(self, path: str) -> None:
        self.order.append(self.name)


# --- detaching ---------------------------------------------------------------------------------


@pytest.fixture
def lab(people: Cast) -> World:
    """Returns a world with an attached cluster of one node, whose API server does not exist."""
    cluster = Cluster.objects.create(name="east", backend=Cluster.Backend.KUBERNETES)
    ClusterAccess.objects.create(cluster=cluster, sealed_kubeconfig=seal(b"{}"), server="https://east:6443")
    made = World(people, cluster)
    made.node("v100-0", people.v100)
    return made


def test_a_cluster_with_jobs_stays_and_says_how_many(lab: World) -> None:
    people = lab.people
    running, waiting = (
        lab.submit(people.bob, people.astro, gpus=4, environment="example/train") for _ in range(2)
    )
    lab.fill()
    lab.carry_out()
    with pytest.raises(Refused, match=r"east still has 2 unfinished jobs and 1 lease of GPUs\."):
        detach_cluster(actor=people.ada, cluster=lab.cluster)
    Job.objects.filter(pk=waiting.pk).update(state=Job.State.CANCELLED, ended_at="2026-01-01T00:00Z")
    with pytest.raises(Refused, match=r"east still has 1 unfinished job and 1 lease of GPUs\."):
        detach_cluster(actor=people.ada, cluster=lab.cluster)
    assert Cluster.objects.attached().exists()
    assert ClusterAccess.objects.exists()
    assert running.pk


def test_trades_end_when_their_cluster_is_detached(lab: World) -> None:
    """Detaching a cluster ends its trades and books their time and the teams' entitlements, because no later round
    would."""
    people = lab.people
    job = lab.submit(people.bob, people.astro, gpus=4, environment="example/train")
    lab.fill()
    lab.carry_out()
    lab.pass_time(30)
    lab.see(lab.lease(job), Phase.ENDED, end=End.SUCCEEDED, exit_code=0, ended_age=0.0)
    made = Round.objects.get()
    trade = Trade.objects.create(
        round=made, seller=people.astro, buyer=people.bio, slow=people.v100, fast=people.a100, fast_gpus=1.0,
        slow_gpus=2.0, price=2.0, seller_speedup=1.5, buyer_speedup=3.0, begins=made.at,
    )  # fmt: skip
    detach_cluster(actor=people.ada, cluster=lab.cluster)
    trade.refresh_from_db()
    lab.cluster.refresh_from_db()
    assert trade.ends == lab.cluster.detached_at
    booked = LedgerTransaction.objects.get(key=f"trade:{trade.pk}")
    assert (booked.period.lower, booked.period.upper) == (trade.begins, trade.ends)
    assert set(ShareInterval.objects.values_list("ends", flat=True)) == {trade.ends}
    assert not ShareBalance.objects.exclude(share=0).exists()


def test_a_detached_cluster_takes_no_jobs_and_has_no_rounds(lab: World) -> None:
    people = lab.people
    detach_cluster(actor=people.ada, cluster=lab.cluster)
    with pytest.raises(Refused, match="east is detached"):
        lab.submit(people.bob, people.astro, environment="example/train")
    run_due_rounds()
    lab.cluster.refresh_from_db()
    assert lab.cluster.round_number == 0
    with pytest.raises(Refused, match="east is not attached"):
        detach_cluster(actor=people.ada, cluster=lab.cluster)


@pytest.mark.parametrize("first", ["submit", "detach"])
def test_a_job_and_a_detachment_at_once_do_not_both_succeed(
    lab: World, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a submit and a detachment run at the same time, the second waits until the first has committed, and is then
    refused."""
    people, outcome = lab.people, {}
    begun, go_on = threading.Event(), threading.Event()

    def act(name: str) -> None:
        try:
            if name == "submit":
                spec = JobSpec(name="late", command="true", environment="example/train")
                submit_job(actor=people.bob, tenant=people.astro, cluster=lab.cluster, spec=spec)
            else:
                detach_cluster(actor=people.ada, cluster=lab.cluster)
            outcome[name] = "done"
        except Refused as refused:
            outcome[name] = refused.message
        finally:
            connection.close()

    from accounting.access import audit  # noqa: PLC0415 - the last thing that either of them does

    names = {"submit": "job.submit", "detach": "cluster.detach"}

    def held(record: Callable[..., Any], **event: Any) -> Any:
        if event["verb"] == names[first]:
            begun.set()
            go_on.wait()
        return record(**event)

    for name in ("record", "record_many"):
        monkeypatch.setattr(audit, name, partial(held, getattr(audit, name)))
    second = "detach" if first == "submit" else "submit"
    one, other = (threading.Thread(target=act, args=(name,)) for name in (first, second))
    one.start()
    wait_for(begun.is_set, what=f"{first} has begun")
    other.start()
    wait_for(waits_for_a_lock, what=f"{second} waits for {first}")
    go_on.set()
    one.join()
    other.join()
    assert outcome[first] == "done"
    assert ("1 unfinished job and 0 leases" if first == "submit" else "is detached") in outcome[second]


def test_reattaching_holds_no_lock_while_it_waits_for_the_schedule(api_server: StandIn, people: Cast) -> None:
    """Reattaching locks the schedule before the cluster's row, as a round does. The opposite order could cause a
    deadlock."""
    cluster = attach(api_server, people)
    detach_cluster(actor=people.ada, cluster=cluster)

    def again() -> None:
        try:
            attach(api_server, people)
        finally:
            connection.close()

    thread = threading.Thread(target=again)
    with transaction.atomic():
        lock_schedule(cluster.pk)
        thread.start()
        wait_for(waits_for_a_lock, what="the other waits")
        Cluster.objects.select_for_update(nowait=True).get(pk=cluster.pk)
    thread.join()
    assert Cluster.objects.get(pk=cluster.pk).detached_at is None


def waits_for_a_lock() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        return bool(cursor.fetchone()[0])
