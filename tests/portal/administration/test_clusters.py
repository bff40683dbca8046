"""Admins attach, check and detach clusters and replace kubeconfigs, on pages and in the API."""

from __future__ import annotations

import html as html_module
import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import settings
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from accounting.models import AuditEvent
from portal.models import Scope
from portal.tokens.actions import create_token
from scheduling.backends.kubernetes.rights import OPTIONAL, needed
from scheduling.models import Cluster, ClusterAccess
from tests.portal.scene import Scene
from tests.scheduling.stand_in import TOKEN, USER, Answer, StandIn, stand_in

FORM = {"name": "east", "namespace_prefix": "fairlot", "writes_per_second": "50", "writes_at_once": "100"}


@pytest.fixture(scope="module")
def plays(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    with stand_in(tmp_path_factory.mktemp("stand-in")) as running:
        yield running


@pytest.fixture
def api_server(plays: StandIn) -> StandIn:
    plays.instead, plays.podgroups = None, ""
    needs = {(right.verb, right.resource.partition("/")[0]) for right in needed(in_teams=True)}
    # Outside the teams' namespaces, these rights would be too broad.
    needs -= {("create", "pods"), ("create", "secrets")}
    plays.allows = lambda right: (
        (right["verb"], right["resource"]) in needs
        and bool(right["name"] or right["resource"] != "clusterroles")
    )
    return plays


@pytest.fixture
def ada(scene: Scene, browser_of) -> Client:
    return browser_of(scene.people.ada)


@pytest.fixture
def east(ada: Client, api_server: StandIn) -> Cluster:
    posted = ada.post("/admin/clusters/attach/", FORM | {"kubeconfig": api_server.kubeconfig()})
    assert posted.status_code == 302, text_of(posted)
    return Cluster.objects.get(name="east")


def text_of(response: Any) -> str:
    """Returns the visible text of a page on one line."""
    plain = re.sub(r"<[^>]+>", " ", response.content.decode())
    return " ".join(html_module.unescape(plain).split())


def test_a_pasted_kubeconfig_attaches_and_its_rights_are_shown(
    ada: Client, east: Cluster, api_server: StandIn
) -> None:
    listed = text_of(ada.get("/admin/clusters/"))
    assert f"east healthy last checked now Kubernetes {api_server.server}" in listed
    page = text_of(ada.get(f"/admin/clusters/{east.pk}/"))
    asked = len(list(needed(in_teams=False)))
    assert USER in page
    assert f"Rights that Fairlot needs {asked} of {asked} requested rights are granted" in page
    assert "Rights of Fairlot in the whole cluster nodes get list watch finds the GPUs of nodes" in page


@pytest.mark.parametrize(
    ("right", "said"),
    [
        (True, "The cluster's scheduler also sees each gang as a PodGroup (v1alpha2)."),
        (None, "The cluster's scheduler also sees each gang as a PodGroup (v1alpha2)."),
        (
            False,
            "The cluster's PodGroups (v1alpha2) are not used, because Fairlot has no right to create them.",
        ),
    ],
)
def test_the_page_says_whether_gangs_are_podgroups_and_why_not(
    ada: Client, east: Cluster, api_server: StandIn, right: bool | None, said: str
) -> None:
    path = f"/admin/clusters/{east.pk}/"
    gate = "Gangs A scheduling gate of Fairlot holds the pods of a gang until all of them can start together."
    unsupported = "PodGroups are not used, because the cluster offers none that Fairlot supports."
    assert f"{gate} {unsupported}" in text_of(ada.get(path))
    api_server.podgroups = "v1alpha2"
    assert ada.post(f"{path}check/").status_code == 302
    access = ClusterAccess.objects.get()
    if right is not None:
        access.rights |= dict.fromkeys(OPTIONAL, right)
        access.save()
    page = text_of(ada.get(path))
    assert gate in page
    assert f"{said} Single-worker jobs" in page
    asked = len(list(needed(in_teams=False)))
    assert f"Rights that Fairlot needs {asked} of {asked} requested rights are granted" in page, (
        "those that are needed"
    )


def test_a_chosen_file_does_as_well(ada: Client, api_server: StandIn) -> None:
    file = SimpleUploadedFile("fairlot.kubeconfig", api_server.kubeconfig().encode())
    assert ada.post("/admin/clusters/attach/", FORM | {"kubeconfig": "", "file": file}).status_code == 302
    assert ClusterAccess.objects.get().server == api_server.server


@pytest.mark.parametrize(
    ("data", "said"),
    [(b"\xff\xfe", "This file is not UTF-8 text."), (b"#" * 70_000, "This kubeconfig file is too large")],
)
def test_another_file_is_refused(ada: Client, data: bytes, said: str) -> None:
    file = SimpleUploadedFile("photo.jpg", data)
    refused = ada.post("/admin/clusters/attach/", FORM | {"kubeconfig": "", "file": file})
    assert refused.status_code == 422
    assert said in text_of(refused)


def test_a_kubeconfig_is_never_shown_again(ada: Client, east: Cluster, api_server: StandIn) -> None:
    """No page contains a stored kubeconfig, nor does the audit trail, nor the response that refuses an invalid one."""
    seen = [ada.get(path) for path in ("/admin/clusters/", f"/admin/clusters/{east.pk}/", "/admin/audit/")]
    api_server.instead = Answer(401, b"{}")
    for path in ("/admin/clusters/attach/", f"/admin/clusters/{east.pk}/kubeconfig/"):
        refused = ada.post(path, FORM | {"name": "west", "kubeconfig": api_server.kubeconfig()})
        assert refused.status_code == 422
        assert "does not accept the token" in text_of(refused)
        assert "no-store" in refused["Cache-Control"]
        seen.append(refused)
    for response in seen:
        assert TOKEN not in response.content.decode()
    assert TOKEN not in str(list(AuditEvent.objects.values()))


def test_values_typed_beside_the_kubeconfig_stay(ada: Client) -> None:
    refused = ada.post("/admin/clusters/attach/", FORM | {"kubeconfig": "no", "writes_at_once": "77"})
    html = refused.content.decode()
    assert 'value="east"' in html
    assert 'value="77"' in html
    assert re.search(r"<textarea[^>]*aria-invalid[^>]*>\n</textarea>", html)
    assert "data-live=" not in html.partition('id="clusters-body"')[2].partition(">")[0]


def test_operators_look_and_check_and_are_shown_no_forms(
    scene: Scene, browser_of, east: Cluster, api_server: StandIn
) -> None:
    olga = browser_of(scene.people.olga)
    for path in ("/admin/clusters/", f"/admin/clusters/{east.pk}/"):
        html = olga.get(path).content.decode()
        assert "kubeconfig" not in re.findall(r'name="(\w+)"', html)
        assert "Detach" not in html
    api_server.allows = lambda right: right["resource"] != "nodes" and right["verb"] != "*"
    assert olga.post(f"/admin/clusters/{east.pk}/check/").status_code == 302
    page = text_of(olga.get(f"/admin/clusters/{east.pk}/"))
    assert (
        "Fairlot lacks rights in this cluster: get nodes, list nodes, watch nodes. Apply deploy/kubernetes to it."
        in page
    )
    assert "it may read every secret of the cluster, start pods in every namespace" in page


def test_for_all_other_users_the_forms_do_not_exist(
    scene: Scene, browser_of, east: Cluster, api_server: StandIn
) -> None:
    form, cast = FORM | {"name": "west", "kubeconfig": api_server.kubeconfig()}, scene.people
    api_server.asked.clear()
    events = AuditEvent.objects.count()
    for who in (cast.alice, cast.bob, cast.charlie, cast.olga):
        for path in ("attach", f"{east.pk}/kubeconfig", f"{east.pk}/detach"):
            assert browser_of(who).post(f"/admin/clusters/{path}/", form).status_code == 404, (who, path)
    assert browser_of(cast.alice).post(f"/admin/clusters/{east.pk}/check/").status_code == 404
    strict = browser_of(cast.ada, enforce_csrf_checks=True)
    for path in ("attach", f"{east.pk}/kubeconfig", f"{east.pk}/detach", f"{east.pk}/check"):
        assert strict.post(f"/admin/clusters/{path}/", form).status_code == 403, path
    assert (api_server.asked, AuditEvent.objects.count()) == ([], events)
    assert Cluster.objects.attached().filter(name="east").exists()


def test_an_admin_sets_what_jobs_may_reach_and_other_users_have_no_such_form(
    scene: Scene, browser_of, ada: Client, east: Cluster
) -> None:
    path = f"/admin/clusters/{east.pk}/"
    assert "Network access of jobs Jobs can reach only jobs of the same team. Gangs" in text_of(ada.get(path))
    assert ada.post(f"{path}reachable/", {"ranges": "10.20.0.0/16\n 2001:db8::/32"}).status_code == 302
    page = ada.get(path)
    assert "jobs of the same team, and the IP ranges 10.20.0.0/16, 2001:db8::/32. Gangs" in text_of(page)
    assert "\n10.20.0.0/16\n2001:db8::/32</textarea>" in page.content.decode()
    refused = ada.post(f"{path}reachable/", {"ranges": "the internet"})
    assert refused.status_code == 422
    assert "'the' does not appear to be an IPv4 or IPv6 network" in text_of(refused)
    assert "\nthe internet</textarea>" in refused.content.decode()
    for who in (scene.people.alice, scene.people.olga):
        assert browser_of(who).post(f"{path}reachable/", {"ranges": ""}).status_code == 404
    assert "reachable" not in browser_of(scene.people.olga).get(path).content.decode()
    assert ClusterAccess.objects.get().reachable == ["10.20.0.0/16", "2001:db8::/32"]
    event = AuditEvent.objects.get(verb="cluster.set_reachable")
    assert (event.before, event.after) == (
        {"reachable": []},
        {"reachable": ["10.20.0.0/16", "2001:db8::/32"]},
    )


def test_an_admin_has_new_jobs_of_one_worker_run_as_pods_without_a_job(
    scene: Scene, browser_of, ada: Client, east: Cluster
) -> None:
    path = f"/admin/clusters/{east.pk}/"
    assert "Single-worker jobs New jobs with one worker run as Kubernetes Jobs, like gangs." in text_of(
        ada.get(path)
    )
    assert ada.post(f"{path}bare-pods/", {"bare_pods": "on"}).status_code == 302
    page = ada.get(path)
    assert (
        "Single-worker jobs New jobs with one worker run as bare pods, without a Kubernetes Job."
        in text_of(page)
    )
    assert 'name="bare_pods" id="bare-pods-bare_pods" checked' in page.content.decode()
    for who in (scene.people.alice, scene.people.olga):
        assert browser_of(who).post(f"{path}bare-pods/").status_code == 404
    assert "bare-pods" not in browser_of(scene.people.olga).get(path).content.decode()
    assert ClusterAccess.objects.get().bare_pods
    assert ada.post(f"{path}bare-pods/").status_code == 302
    events = AuditEvent.objects.filter(verb="cluster.set_bare_pods").order_by("id")
    assert [event.after for event in events] == [{"bare_pods": True}, {"bare_pods": False}]


def test_trouble_shows_on_the_cluster_pages_and_its_words_to_operators_alone(
    scene: Scene, browser_of, ada: Client, east: Cluster, api_server: StandIn
) -> None:
    api_server.instead = Answer(401, b"{}")
    ada.post(f"/admin/clusters/{east.pk}/check/")
    assert "east trouble" in text_of(ada.get("/admin/clusters/"))
    assert "east trouble" in text_of(ada.get("/admin/nodes/"))
    assert "does not accept the token" in text_of(browser_of(scene.people.olga).get("/cluster/"))
    bob = text_of(browser_of(scene.people.bob).get("/cluster/"))
    assert "Fairlot has a problem with this cluster" in bob
    assert "does not know" not in bob


def test_a_detached_cluster_goes_from_where_jobs_are_sent_and_stays_in_the_list(
    scene: Scene, browser_of, ada: Client, east: Cluster, api_server: StandIn
) -> None:
    bob = browser_of(scene.people.bob)
    for path in ("/cluster/", "/submit/", "/api/v1/gpu-map"):
        assert re.search(r"\beast\b", bob.get(path).content.decode()), path
    assert ada.post(f"/admin/clusters/{east.pk}/detach/").status_code == 302
    for path in ("/cluster/", "/submit/", "/api/v1/gpu-map"):
        assert not re.search(r"\beast\b", bob.get(path).content.decode()), path
    listed = text_of(ada.get("/admin/clusters/"))
    assert "east has been detached." in listed
    assert "east detached" in listed
    assert not re.search(r"\beast\b", text_of(ada.get("/admin/settings/")))
    assert "To use the cluster again, attach it" in text_of(ada.get(f"/admin/clusters/{east.pk}/"))
    again = ada.post("/admin/clusters/attach/", FORM | {"kubeconfig": api_server.kubeconfig()})
    assert again.status_code == 302
    assert "east" in text_of(bob.get("/cluster/"))


def test_a_cluster_with_jobs_is_not_detached(scene: Scene, ada: Client) -> None:
    lab = scene.world.cluster
    Cluster.objects.filter(pk=lab.pk).update(backend=Cluster.Backend.KUBERNETES)
    ClusterAccess.objects.create(cluster=lab, sealed_kubeconfig=b"-", server="https://lab:6443")
    refused = ada.post(f"/admin/clusters/{lab.pk}/detach/")
    assert refused.status_code == 422
    assert "lab still has 3 unfinished jobs and 2 leases of GPUs" in text_of(refused)


def test_the_portals_own_machine_is_not_to_be_attached_or_detached(scene: Scene, ada: Client) -> None:
    lab = scene.world.cluster
    page = ada.get(f"/admin/clusters/{lab.pk}/").content.decode()
    assert "does not have to be attached" in page
    assert 'data-opens="detach"' not in page
    for verb in ("check", "detach"):
        assert ada.post(f"/admin/clusters/{lab.pk}/{verb}/").status_code == 422
    assert ada.get("/admin/clusters/999999/").status_code == 404


def test_the_api_does_the_same(scene: Scene, api_server: StandIn) -> None:
    _, secret = create_token(actor=scene.people.ada, name="ops", scopes=Scope.values, days=1)
    client = Client(headers={"authorization": f"Bearer {secret}"})
    api = "/api/v1/clusters"
    new = {"name": "east", "kubeconfig": api_server.kubeconfig()}
    made = client.post(api, new, content_type="application/json")
    assert made.status_code == 201
    access = made.json()["access"]
    assert (access["user"], access["trouble"], access["beyond"], access["podgroups"]) == (USER, "", [], "")
    assert access["rights"]["list nodes"] is True
    refused = client.post(api, new, content_type="application/json")
    assert refused.status_code == 409
    assert refused.json()["problems"] == {"name": "A cluster named east already exists."}
    assert [one["name"] for one in client.get(api).json()] == ["east", "lab"]
    assert client.post(f"{api}/east/check").json()["access"]["trouble"] == ""
    given = {"kubeconfig": api_server.kubeconfig()}
    assert client.put(f"{api}/east/kubeconfig", given, content_type="application/json").status_code == 200
    ranges = {"ranges": ["10.20.0.0/16"]}
    opened = client.put(f"{api}/east/reachable", ranges, content_type="application/json")
    assert opened.json()["access"]["reachable"] == ["10.20.0.0/16"]
    refused = client.put(f"{api}/east/reachable", {"ranges": ["x"]}, content_type="application/json")
    assert (refused.status_code, set(refused.json()["problems"])) == (409, {"ranges"})
    bare = client.put(
        f"{api}/east/standalone-pods", {"standalone_pods": True}, content_type="application/json"
    )
    assert bare.json()["access"]["standalone_pods"] is True
    assert client.post(f"{api}/east/detach").json()["detached_at"] is not None
    assert client.get(f"{api}/east").json()["access"] is None
    assert client.post(f"{api}/west/check").status_code == 404


def test_for_others_the_api_of_clusters_does_not_exist(scene: Scene, browser_of, api_server: StandIn) -> None:
    new = {"name": "east", "kubeconfig": api_server.kubeconfig()}
    api_server.asked.clear()
    for who in (scene.people.alice, scene.people.olga):
        client = browser_of(who)
        assert client.post("/api/v1/clusters", new, content_type="application/json").status_code == 404
        assert client.post("/api/v1/clusters/lab/detach").status_code == 404
    assert browser_of(scene.people.alice).post("/api/v1/clusters/lab/check").status_code == 404
    assert api_server.asked == []


def test_the_page_and_the_documentation_say_the_same_commands(ada: Client) -> None:
    commands = (settings.BASE_DIR / "templates/administration/kubeconfig_commands.txt").read_text()
    assert f"```\n{commands}```" in (settings.BASE_DIR / "docs/operate.md").read_text()
    page = html_module.unescape(ada.get("/admin/clusters/").content.decode())
    assert commands.strip() in page
