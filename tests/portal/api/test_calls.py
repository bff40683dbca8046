"""The REST API: job calls, problem documents, paging and idempotency keys. No response contains data of other teams."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterator
from decimal import Decimal
from importlib import import_module
from typing import get_type_hints

import pytest
from django.test import Client
from pydantic import BaseModel

import portal.api
from accounting.actions import set_budget, set_quota
from portal.tokens.actions import create_token
from scheduling.models import Job
from scheduling.spec.job_spec import JobSpec
from tests.portal.scene import Scene, book

JSON = "application/json"
SPEC = {"name": "api", "command": "true", "gpus_per_worker": 1}


@pytest.fixture
def call(scene: Scene):
    """Returns a function that calls the API with Bob's token."""

    def call(method: str, path: str, body: object = None, **headers: str):
        send = getattr(Client(), method)
        extra = {} if body is None else {"data": body, "content_type": JSON}
        return send(f"/api/v1{path}", **extra, headers={"authorization": f"Bearer {scene.secret}"} | headers)

    return call


def test_a_job_is_submitted_as_a_mapping_or_as_yaml(scene: Scene, call) -> None:
    for spec in (SPEC, "name: api\ncommand: 'true'\ngpus_per_worker: 1"):
        response = call("post", "/jobs", {"spec": spec, "team": "astro"})
        assert response.status_code == 201
        shown = response.json()
        assert (shown["team"], shown["owner"], shown["state"]) == ("astro", "bob", "queued")
        assert call("get", f"/jobs/{shown['id']}").json() == shown


def test_the_same_idempotency_key_answers_with_the_same_job(call) -> None:
    ids = {call("post", "/jobs", {"spec": SPEC}, **{"Idempotency-Key": "n1"}).json()["id"] for _ in range(2)}
    assert len(ids) == 1
    assert call("post", "/jobs", {"spec": SPEC}, **{"Idempotency-Key": "n2"}).json()["id"] not in ids


@pytest.mark.parametrize(
    ("body", "field", "said"),
    [
        ({"spec": SPEC | {"workers": 0}}, "workers", "a whole number from 1 to 4096"),
        ({"spec": SPEC | {"colour": 1}}, "colour", "is not a field of a job spec"),
        ({"spec": SPEC | {"generations": ["K80"]}}, "generations", "accepted: A100, V100"),
        ({"spec": "name: [a"}, "yaml", "cannot be read in line 1"),
        ({"spec": SPEC, "team": "bio"}, "team", "Choose one of: astro."),
        ({"spec": SPEC, "cluster": "moon"}, "cluster", "Choose one of: lab."),
        ({}, "spec", "is missing"),
        ({"spec": 5}, "spec", "must be a mapping of fields or a text, not a number"),
    ],
)
def test_errors_are_listed_by_field(call, body, field, said) -> None:
    for path in ("/jobs", "/preflight"):
        response = call("post", path, body)
        assert response.status_code == 422
        assert response["Content-Type"] == "application/problem+json"
        shown = response.json()
        assert {"type", "title", "status", "detail", "problems"} == set(shown)
        assert said in shown["problems"][field]


class TestManyAtOnce:
    def test_all_are_queued_and_the_same_key_answers_with_the_same_jobs(self, scene: Scene, call) -> None:
        body = {"specs": [SPEC, "name: yaml\ncommand: 'true'"], "team": "astro"}
        first, again = (call("post", "/jobs/bulk", body, **{"Idempotency-Key": "m"}) for _ in range(2))
        assert (first.status_code, again.json()) == (201, first.json())
        shown = first.json()
        assert (shown["accepted"], shown["refused"]) == (2, 0)
        for one, name in zip(shown["items"], ("api", "yaml"), strict=True):
            job = call("get", f"/jobs/{one['id']}").json()
            assert (job["name"], job["owner"], job["team"], one["problems"]) == (name, "bob", "astro", {})

    def test_one_that_is_wrong_refuses_all_and_is_named(self, scene: Scene, call) -> None:
        before = Job.objects.count()
        for wrong, status, said in (
            ({"workers": 0}, 422, {"specs.1.workers": "must be a whole number from 1 to 4096"}),
            ({"generations": ["K80"]}, 422, {"specs.1.generations": "lab has no GPUs of type K80"}),
            ({"gpus_per_worker": 64}, 409, {"specs.1.even_if_never": "The job can never run here"}),
        ):
            answer = call("post", "/jobs/bulk", {"specs": [SPEC, SPEC | wrong]})
            assert (answer.status_code, answer["Content-Type"]) == (status, "application/problem+json")
            problems = answer.json()["problems"]
            assert problems.keys() == said.keys()
            assert all(text in problems[field] for field, text in said.items())
        assert Job.objects.count() == before

    def test_each_has_its_answer_where_some_will_do(self, scene: Scene, call) -> None:
        wrong = [SPEC | {"workers": 0}, SPEC | {"gpus_per_worker": 64}]
        shown = call("post", "/jobs/bulk", {"specs": [*wrong, SPEC], "atomic": False}).json()
        assert (shown["accepted"], shown["refused"]) == (1, 2)
        assert [list(one["problems"]) for one in shown["items"]] == [["workers"], ["even_if_never"], []]
        assert Job.objects.get(pk=shown["items"][2]["id"]).name == "api"
        nothing = call("post", "/jobs/bulk", {"specs": wrong, "atomic": False})
        assert (nothing.status_code, list(nothing.json()["problems"])) == (
            422,
            ["specs.0.workers", "specs.1.even_if_never"],
        )

    @pytest.mark.parametrize(
        ("body", "field", "said"),
        [
            ({"specs": [SPEC] * 1001}, "specs", "at most 1000 items"),
            ({"specs": []}, "specs", "at least 1 item"),
            ({"specs": ["#" * 65_536] * 4 + ["#"]}, "specs", "at most 262\xa0144 characters of YAML"),
            ({"specs": SPEC}, "specs", "must be a list, not {"),
            ({"specs": [SPEC], "team": "bio"}, "team", "Choose one of: astro."),
        ],
    )
    def test_errors_of_the_call_are_explained(self, call, body, field: str, said: str) -> None:
        before = Job.objects.count()
        answer = call("post", "/jobs/bulk", body)
        assert answer.status_code == 422
        assert said in answer.json()["problems"][field]
        assert Job.objects.count() == before

    def test_a_token_that_may_only_read_submits_nothing(self, scene: Scene) -> None:
        _, secret = create_token(actor=scene.people.bob, name="reads", scopes=(), days=1)
        answer = Client().post(
            "/api/v1/jobs/bulk", {"specs": [SPEC]}, JSON, headers={"authorization": f"Bearer {secret}"}
        )
        assert answer.status_code == 403
        assert answer.json()["detail"].startswith("This token may only read.")


@pytest.mark.parametrize("path", ["/jobs/", "/jobs/{job}/events/"])
def test_an_address_with_a_slash_too_many_leads_to_the_right_one(scene: Scene, call, path: str) -> None:
    path = path.format(job=scene.job.pk)
    for method in ("get", "post"):
        answer = call(method, f"{path}?limit=1")
        assert (answer.status_code, answer["Content-Type"]) == (308, "application/problem+json")
        assert answer["Location"] == f"/api/v1{path.rstrip('/')}?limit=1"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("post", "/nowhere", 404),
        ("post", "/nowhere/", 404),
        ("delete", "/jobs", 405),
        ("get", "/preflight", 405),
    ],
)
def test_whatever_is_refused_is_a_problem_document(
    scene: Scene, browser_of, method: str, path: str, status: int
) -> None:
    """Every refusal is a problem document, even that of a CSRF check, which Django itself answers with an HTML page."""
    strict = browser_of(scene.people.bob, enforce_csrf_checks=True)
    answer = getattr(strict, method)(f"/api/v1{path}")
    assert (answer.status_code, answer["Content-Type"]) == (status, "application/problem+json")
    assert answer.json()["status"] == status
    assert status != 405 or answer["Allow"]


def test_the_documentation_shows_a_body_that_is_right(scene: Scene, call) -> None:
    schemas = call("get", "/openapi.json").json()["components"]["schemas"]
    example = schemas["NewJob"]["example"]
    assert call("post", "/jobs", example | {"team": "astro", "even_if_never": True}).status_code == 201
    bulk = schemas["NewJobs"]["example"]
    assert call("post", "/jobs/bulk", bulk | {"team": "astro"}).status_code == 201


def test_a_foreign_text_is_converted_and_nothing_is_saved(scene: Scene, call) -> None:
    before = Job.objects.count()
    text = "#!/bin/bash\n#SBATCH -J slurm --gres=gpu:2 -A lab\npython train.py\n"
    shown = call("post", "/convert", {"text": text}).json()
    assert (shown["format"], [one["kind"] for one in shown["works"]]) == ("slurm", ["job"])
    assert shown["works"][0]["spec"]["gpus_per_worker"] == 2
    assert JobSpec.from_yaml(shown["works"][0]["yaml"]) == JobSpec.parse(shown["works"][0]["spec"])
    assert ("line 2: -A", "dropped") in [(one["source"], one["fate"]) for one in shown["report"]]
    assert Job.objects.count() == before


def test_an_array_is_answered_as_the_sweep_that_it_creates(scene: Scene, call) -> None:
    text = (
        "#!/bin/bash\n#SBATCH -J many --gres=gpu:1 --array=1,5,7-9%2\npython train.py $SLURM_ARRAY_TASK_ID\n"
    )
    (found,) = call("post", "/convert", {"text": text}).json()["works"]
    assert (found["kind"], found["options"]["at_once"]) == ("sweep", 2)
    made = call("post", "/sweeps", {"spec": found["spec"], "team": "astro"} | found["options"])
    assert (made.status_code, made.json()["size"], made.json()["names"]) == (201, 5, ["SLURM_ARRAY_TASK_ID"])


def test_fields_that_the_only_cluster_lacks_are_dropped(scene: Scene, call) -> None:
    text = "#!/bin/bash\n#SBATCH --mem=8G --gres=gpu:2\npython train.py\n"
    shown = call("post", "/convert", {"text": text}).json()
    assert "memory" not in shown["works"][0]["spec"]
    assert ("line 2: --mem", "dropped") in [(one["source"], one["fate"]) for one in shown["report"]]
    wrong = call("post", "/convert", {"text": text, "cluster": "nowhere"})
    assert (wrong.status_code, "cluster" in wrong.json()["problems"]) == (422, True)


def test_a_text_that_cannot_be_converted_has_a_report_alone(call) -> None:
    text = "apiVersion: v1\nkind: Pod\nspec: {hostNetwork: true, containers: [{image: a, command: [b]}]}"
    for body, says in (({"text": text}, "network"), ({"text": "a: b"}, "not recognised")):
        shown = call("post", "/convert", body).json()
        assert shown["works"] == []
        assert shown["report"][0]["fate"] == "refused"
        assert says in shown["report"][0]["text"]
    wrong = call("post", "/convert", {"text": text, "format": "cobol"})
    assert (wrong.status_code, "Choose one of: slurm" in wrong.json()["problems"]["format"]) == (422, True)


def test_preflight_answers_and_changes_nothing(call) -> None:
    before = Job.objects.count()
    shown = call("post", "/preflight", {"spec": SPEC | {"gpus_per_worker": 64}}).json()
    assert shown["verdict"] == "never"
    shown = call("post", "/preflight", {"spec": SPEC}).json()
    assert {name: Decimal(cost) for name, cost in shown["cost_per_hour"].items()} == {
        "A100": Decimal("3.00"), "V100": Decimal("1.20"),
    }  # fmt: skip
    assert shown["currencies"] == {"A100": "EUR", "V100": "EUR"}
    assert Job.objects.count() == before


def test_the_list_goes_on_where_a_page_ends(scene: Scene, call) -> None:
    mine = [call("post", "/jobs", {"spec": SPEC}).json()["id"] for _ in range(3)]
    expected = [*reversed(mine), scene.waiting.pk, scene.job.pk]
    found, before = [], ""
    while True:
        page = call("get", f"/jobs?limit=2{before}").json()
        found += [job["id"] for job in page["items"]]
        for job in page["items"]:
            alone = call("get", f"/jobs/{job['id']}").json()
            assert {name: alone[name] for name in job} == job
        if page["next"] is None:
            break
        before = f"&before={page['next']}"
    assert found == expected
    assert [job["id"] for job in call("get", "/jobs?q=NOVA-n").json()["items"]] == [scene.waiting.pk]


def test_cancelling_twice_is_as_good_as_once(scene: Scene, call) -> None:
    made = call("post", "/jobs", {"spec": SPEC}).json()["id"]
    assert [call("post", f"/jobs/{made}/cancel").json()["state"] for _ in range(2)] == ["cancelled"] * 2


def test_a_job_that_can_never_run_is_queued_only_on_request(scene: Scene, call) -> None:
    body = {"spec": SPEC | {"gpus_per_worker": 9}}
    refused = call("post", "/jobs", body)
    assert refused.status_code == 409
    assert not Job.objects.filter(name="api").exists()
    said = refused.json()["problems"]["even_if_never"]
    assert "the largest node with A100 or V100 has 4" in said
    assert "Astro may hold at most 6 GPUs at once" in said
    made = call("post", "/jobs", body | {"even_if_never": True})
    assert (made.status_code, made.json()["state"]) == (201, "queued")


def test_a_member_may_not_cancel_a_colleagues_job(scene: Scene, call) -> None:
    response = call("post", f"/jobs/{scene.waiting.pk}/cancel")
    assert response.status_code == 403
    assert "Only the owner" in response.json()["detail"]


@pytest.mark.parametrize("path", ["", "/events", "/log", "/scheduling"])
def test_jobs_of_others_do_not_exist(scene: Scene, call, path: str) -> None:
    for number in (scene.other.pk, 999999):
        response = call("get", f"/jobs/{number}{path}")
        assert response.status_code == 404
        assert response.json()["detail"] == f"There is no job {number} that you may see."
    assert call("get", f"/jobs/99999999999999999999{path}").status_code == 404


def test_events_scheduling_and_log_of_a_job(scene: Scene, call) -> None:
    events = call("get", f"/jobs/{scene.job.pk}/events").json()
    assert events["items"][0]["kind"] == "submitted"
    rest = call("get", f"/jobs/{scene.job.pk}/events?after={events['items'][0]['id']}").json()
    assert rest["items"] == events["items"][1:]
    why = call("get", f"/jobs/{scene.waiting.pk}/scheduling").json()
    assert why["sentence"]
    assert why["never"]  # the job needs eight GPUs, and the limit is six
    log = call("get", f"/jobs/{scene.job.pk}/log?rank=0&offset=0").json()
    assert (log["rank"], log["offset"], log["text"]) == (0, 0, "")
    assert call("get", f"/jobs/{scene.job.pk}/log?rank=7").status_code == 404


def test_the_cluster_shows_others_holdings_only_as_a_number(scene: Scene, call) -> None:
    [cluster] = call("get", "/gpu-map").json()
    nodes = cluster["nodes"]
    assert sum(node["gpus_of_others"] for node in nodes) == 4
    assert [one["job"] for node in nodes for one in node["allocations"]] == [scene.job.pk]


def test_a_session_works_with_the_csrf_token_only(scene: Scene, browser_of) -> None:
    strict = browser_of(scene.people.bob, enforce_csrf_checks=True)
    assert strict.get("/api/v1/me").json()["teams"] == [{"team": "astro", "role": "member", "tickets": 50}]
    assert strict.post("/api/v1/jobs", {"spec": SPEC}, JSON).status_code == 403
    strict.get("/submit/")  # sets the CSRF cookie
    token = strict.cookies["fairlot_csrf"].value
    sent = strict.post("/api/v1/jobs", {"spec": SPEC}, JSON, headers={"x-csrftoken": token})
    assert sent.status_code == 201


def test_the_documentation_declares_full_disks_and_logs_that_cannot_be_read(scene: Scene, call) -> None:
    paths = call("get", "/openapi.json").json()["paths"]
    for path, operations in paths.items():
        for method, operation in operations.items():
            assert "507" in operation["responses"], f"{method} {path}"
    reads = {
        path
        for path, operations in paths.items()
        if "409" in operations.get("get", {"responses": ""})["responses"]
    }
    of_files = {f"/api/v1/jobs/{{job_id}}/files{part}" for part in ("", "/content", "/archive")}
    of_logs = {f"/api/v1/jobs/{{job_id}}/log{rest}" for rest in ("", "/lines", "/search")}
    of_results = {f"/api/v1/jobs/{{job_id}}/results{part}" for part in ("", "/archive")}
    assert reads == of_logs | of_files | of_results


def test_the_documentation_says_in_a_sentence_what_each_call_does(scene: Scene, call) -> None:
    operations = [one for of in call("get", "/openapi.json").json()["paths"].values() for one in of.values()]
    current = [one["summary"] for one in operations if not one.get("deprecated")]
    assert [summary for summary in current if not re.match(r"[A-Z][a-z]+e?s ", summary)] == []


def test_the_documentation_loads_nothing_from_elsewhere(db: None, settings) -> None:
    assert Client().get("/api/v1/openapi.json").status_code == 401
    assert Client().get("/api/v1/docs")["Location"] == "/account/login/?next=/api/v1/docs"
    settings.FAIRLOT_PUBLIC_API_DOCS = True
    page = Client().get("/api/v1/docs")
    assert "http://" not in page.content.decode()
    assert "https://" not in page.content.decode()
    assert "<script>" not in page.content.decode()
    paths = Client().get("/api/v1/openapi.json").json()["paths"]
    assert "/api/v1/jobs/{job_id}/scheduling" in paths


def decimals_of_answers() -> Iterator[tuple[str, object]]:
    """Yields the name and the type annotation of each field of the API's schemas that contains a Decimal."""
    names = [one.name for one in pkgutil.walk_packages(portal.api.__path__, "portal.api.")]
    for module in (import_module(name) for name in names if name.endswith(".schemas")):
        for name, one in vars(module).items():
            if isinstance(one, type) and issubclass(one, BaseModel) and one.__module__ == module.__name__:
                for field, declared in get_type_hints(one, include_extras=True).items():
                    if "Decimal" in repr(declared):
                        yield f"{name}.{field}", declared


def test_every_decimal_of_an_answer_is_declared_as_a_figure_or_an_amount() -> None:
    found = dict(decimals_of_answers())
    assert {"Limit.used", "Budget.forecast", "IdleTeam.idle_cost"} <= found.keys()
    bare = [
        name for name, declared in found.items() if not re.search(r"_amount|in_millionths", repr(declared))
    ]
    assert bare == []


def test_no_answer_has_the_digits_that_a_division_leaves(scene: Scene, call, browser_of) -> None:
    """Calls every GET operation without path parameters: no number in the responses has more than six decimal places.

    The reports contain a usage of 20 minutes, because 20 minutes are 0.333… hours.
    """
    book(scene.job, scene.people.bob, scene.people.v100, gpus=1, minutes=20, lease=901)
    set_quota(actor=None, tenant=scene.people.astro, kind="gpu_hours", limit=7)
    set_budget(actor=None, tenant=scene.people.astro, period="quarter", amount=7)
    paths = call("get", "/openapi.json").json()["paths"]
    ada, figures = browser_of(scene.people.ada), []
    for path in (path for path, of in paths.items() if "get" in of and "{" not in path):
        answer = ada.get(f"{path}?team=astro")
        if answer.status_code == 200 and answer["Content-Type"].startswith("application/json"):
            figures += [(path, text) for text in re.findall(r'"(-?\d+\.\d+)"', answer.content.decode())]
    assert {"/api/v1/limits", "/api/v1/budgets", "/api/v1/usage"} <= {path for path, _ in figures}
    assert [one for one in figures if len(one[1].partition(".")[2]) > 6] == []
