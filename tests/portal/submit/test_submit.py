"""On the submit page, form and YAML update each other, and problems are shown beside their fields. A repeated POST
submits only one job."""

from __future__ import annotations

import json
import re

import pytest
from django.test import Client
from django.urls import reverse
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.core.clock import now_from_database
from accounting.models import Generation, Membership, Tenant
from portal.submit.fields import Fields, digest, read_yaml
from portal.submit.lines import read_variables
from portal.templatetags.fairlot import as_sentence
from scheduling.models import Cluster, Job, Node, Round
from scheduling.rounds.actions import run_round
from scheduling.spec.job_spec import DEFAULT_PROGRESS, JobSpec, SpecError
from tests import make
from tests.portal.scene import Scene

texts = st.text(max_size=30)
names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
mappings = st.fixed_dictionaries(
    {"name": st.text(min_size=1, max_size=40), "command": st.text(min_size=1, max_size=80)},
    optional={
        "environment": texts,
        "workers": st.integers(1, 4096),
        "max_workers": st.none() | st.integers(1, 4096),
        "gpus_per_worker": st.integers(1, 64),
        "generations": st.lists(st.text(max_size=6), max_size=4, unique=True),
        "variables": st.dictionaries(names, texts, max_size=4),
        "checkpoint_grace_seconds": st.floats(0, 3600),
        "priority": st.integers(-100, 100),
        "expected_hours": st.floats(1e-6, 8760),
        "deadline_hours": st.floats(1e-6, 8760),
        "time_limit_hours": st.floats(1e-6, 8760),
        "checkpoint": st.sampled_from(["", "step-*.pt", "ckpt-*/DONE"]),
        "retries": st.fixed_dictionaries(
            {},
            optional={
                "times": st.integers(0, 100),
                "exit_codes": st.lists(st.integers(1, 255), max_size=4, unique=True),
                "backoff_seconds": st.integers(1, 3600),
            },
        ),
        "secrets": st.dictionaries(
            names.map(lambda name: f"S_{name}"), st.sampled_from(["hf", "s3/key-1.id"])
        ),
        "secret_files": st.lists(st.sampled_from(["a", "b-2"]), unique=True).map(
            lambda found: [{"name": name, "path": f"/opt/{name}"} for name in found]
        ),
        "volumes": st.lists(st.sampled_from(["sky", "sea"]), unique=True).map(
            lambda found: [{"name": name} for name in found]
        ),
        "cpu": st.floats(0.1, 1024),
        "memory": st.sampled_from(["", "64Gi", "1.5T"]),
        "shm": st.sampled_from(["", "512Mi"]),
        "working_directory": st.sampled_from(["", "/srv/a b"]),
        "user_id": st.integers(1, 2**31 - 1),
        "group_id": st.integers(1, 2**31 - 1),
        "image_pull_policy": st.sampled_from(["", "Always", "IfNotPresent", "Never"]),
        "image_pull_secret": st.sampled_from(["", "registry"]),
        "port": st.integers(1024, 65_535),
        "readiness_path": st.sampled_from(["", "/", "/health?deep=1"]),
        "readiness_period_seconds": st.integers(1, 300),
        "readiness_failures": st.integers(1, 100),
        "code": st.sampled_from(
            [
                None,
                {"upload": f"sha256:{'0a' * 32}"},
                {"git": "https://example.org/x.git", "ref": "main", "folder": "a/b", "secret": "hf/token"},
            ]
        ),
        "roles": st.sampled_from(
            [[], [{"name": "chief", "ends_job": True}, {"name": "ps", "gpus_per_worker": 0}]]
        ),
        "launch": st.sampled_from(["", "mpi"]),
        "requirements": st.sampled_from(["", "numpy\n", "a==1\n# why\nb\n"]),
        "labels": st.dictionaries(
            st.sampled_from(["project", "example.org/run", "A_b.c-1"]), st.sampled_from(["", "a", "7.b_C-d"])
        ),
    },
)


@settings(deadline=None)
@given(mappings)
def test_every_spec_survives_the_way_through_form_and_yaml(data: dict[str, object]) -> None:
    try:
        spec = JobSpec.parse(data)
    except SpecError:
        return
    fields = Fields.from_spec(spec)
    assert fields.to_spec() == spec
    assert read_yaml(fields.to_yaml()) == spec
    assert read_yaml(fields.to_yaml().replace("\n", "\r\n")) == spec  # browsers send these line ends


@settings(deadline=None)
@given(st.text(max_size=60))
def test_no_yaml_makes_the_reader_stumble(text: str) -> None:
    try:
        read_yaml(text)
    except SpecError as error:
        assert error.problems  # noqa: PT017 - either outcome is right


@pytest.mark.parametrize(
    ("text", "said"),
    [("A", "line 1 has no “=”"), ("A=1\nA=2", "line 2 names A"), ('A="b', "must end with one")],
)
def test_wrong_variable_lines_are_named(text: str, said: str) -> None:
    with pytest.raises(SpecError) as refused:
        read_variables(text)
    assert said in refused.value.problems["variables"]


FORM = {
    "name": "train", "command": "python train.py", "environment": "", "workers": "1", "gpus_per_worker": "2",
    "variables": "", "checkpoint_grace_seconds": "30", "priority": "0",
    "progress_pattern": Fields().progress_pattern, "request_key": "k1", "do": "submit",
}  # fmt: skip


def posted(**changes: object) -> dict[str, object]:
    """Returns the fields that a browser posts from the submit page, with `changes`. Unless `changes` contains "yaml",
    the YAML states the same job as the form."""
    data = FORM | changes
    if "yaml" not in data:
        plain = {name: data[name] for name in Fields.__dataclass_fields__ if name in data}
        data["yaml"] = Fields(**plain).to_yaml()
        data["agreed"] = digest(data["yaml"])
    return data


@pytest.fixture
def bob(scene: Scene, browser_of) -> Client:
    return browser_of(scene.people.bob)


def problem_of(html: str, field: str) -> str:
    return re.search(rf'id="problem-{field}"[^>]*>(.*?)</div>', html)[1]


def test_a_right_form_becomes_a_job(scene: Scene, bob: Client) -> None:
    response = bob.post("/submit/", posted(generations=["V100"], variables="LR=0.1"))
    job = Job.objects.latest("id")
    assert (response.status_code, response["Location"]) == (302, f"/jobs/{job.pk}/")
    assert (job.owner, job.tenant, job.gpus) == (scene.people.bob, scene.people.astro, 2)
    assert job.spec["variables"] == {"LR": "0.1"}
    assert job.generation_ids == [scene.people.v100.pk]


def test_submitting_twice_makes_one_job(bob: Client) -> None:
    first, second = bob.post("/submit/", posted()), bob.post("/submit/", posted())
    assert first["Location"] == second["Location"]
    assert Job.objects.filter(name="train").count() == 1


@pytest.mark.parametrize(
    ("field", "typed", "said"),
    [
        ("name", "", "1 to 120 characters"),
        ("command", "", "a shell command or script"),
        ("workers", "two", "a whole number from 1 to 4096"),
        ("workers", "0", "a whole number from 1 to 4096"),
        ("gpus_per_worker", "65", "a whole number from 1 to 64"),
        ("gpus_per_worker", "0", "in the command of another step, or in a role with 0 GPUs"),
        ("variables", "NOEQUALS", "one KEY=VALUE on each line"),
        ("variables", "RANK=1", "set by Fairlot itself"),
        ("checkpoint_grace_seconds", "-1", "a number of seconds from 0 to 3600"),
        ("priority", "101", "a whole number from -100 to 100"),
        ("expected_hours", "long", "more than 0 and up to 8760 hours"),
        ("deadline_hours", "0", "more than 0 and up to 8760 hours"),
        ("time_limit_hours", "8761", "more than 0 and up to 8760 hours"),
        ("checkpoint", "../*", "a pattern such as step-*.pt"),
        ("checkpoint", "step-*.tmp", "count as unfinished checkpoints"),
        ("progress_pattern", "(", "an RE2 regular expression"),
        (
            "progress_pattern",
            "step (",
            "Is not a valid regular expression (RE2): missing ): step ( (accepted",
        ),
        ("generations", ["K80"], "lab has no GPUs of type K80; accepted: A100, V100"),
        ("environment", "conda", "not an environment of this cluster"),
    ],
)
def test_each_wrong_field_says_what_is_accepted_and_keeps_what_was_typed(
    bob: Client, field: str, typed: str, said: str
) -> None:
    before = Job.objects.count()
    response = bob.post("/submit/", posted(**{field: typed}))
    html = response.content.decode()
    assert response.status_code == 422
    assert said in problem_of(html, field)
    assert Job.objects.count() == before
    assert 'value="train"' in html or field == "name"  # the other fields keep their values
    assert (typed[0] if isinstance(typed, list) else typed) in html


def test_retries_are_typed_in_three_fields_and_their_problems_are_shown_together(bob: Client) -> None:
    typed = {"retry_times": "3", "retry_exit_codes": "75,  137", "retry_backoff_seconds": "30"}
    assert bob.post("/submit/", posted(**typed)).status_code == 302
    job = Job.objects.latest("id")
    assert job.spec["retries"] == {"times": 3, "exit_codes": [75, 137], "backoff_seconds": 30}
    assert 'value="75, 137"' in bob.get(f"/submit/?clone={job.pk}").content.decode()
    wrong = {"retry_times": "many", "retry_exit_codes": "75 x", "retry_backoff_seconds": "0"}
    response = bob.post("/submit/", posted(**wrong))
    html = response.content.decode()
    assert (response.status_code, Job.objects.latest("id")) == (422, job)
    told = problem_of(html, "retries")
    for accepted in ("a whole number from 0 to 100", "exit codes from 1 to 255", "seconds from 1 to 3600"):
        assert accepted in told
    assert all(f'value="{text}"' in html for text in wrong.values())


def test_yaml_that_was_edited_is_what_is_submitted(bob: Client) -> None:
    data = posted() | {"yaml": "name: from-yaml\ncommand: 'true'\nworkers: 2"}
    assert bob.post("/submit/", data).status_code == 302
    assert Job.objects.latest("id").workers == 2


def test_two_sides_that_say_different_things_are_not_guessed_at(bob: Client) -> None:
    data = posted() | {"yaml": "name: from-yaml\ncommand: 'true'", "name": "from-form"}
    response = bob.post("/submit/", data)
    assert response.status_code == 422
    assert "both changed" in response.content.decode()
    assert not Job.objects.filter(name__startswith="from-").exists()


def test_bad_yaml_is_marked_and_left_alone(bob: Client) -> None:
    data = posted() | {"yaml": "name: [x", "do": "yaml"}
    html = bob.post("/submit/", data).content.decode()
    assert "cannot be read in line 1" in html
    assert "name: [x" in html
    assert 'value="train"' in html  # the form is unchanged


def test_use_form_and_use_yaml_work_without_a_script(bob: Client) -> None:
    html = bob.post("/submit/", posted() | {"yaml": "name: y\ncommand: c", "do": "yaml"}).content.decode()
    assert 'name="name" value="y"' in html
    html = bob.post("/submit/", posted() | {"yaml": "old", "do": "form"}).content.decode()
    assert "name: train" in html


def test_an_edit_of_the_form_sends_the_yaml_and_the_preflight_back(bob: Client) -> None:
    html = bob.post("/submit/convert/?from=form", posted(name="edited")).content.decode()
    assert "name: edited" in html
    assert 'id="preflight"' in html
    assert "an hour" in html
    assert 'id="spec-fields"' not in html  # the answer does not replace the fields in which the user types


def test_an_edit_of_the_form_marks_every_wrong_field(bob: Client) -> None:
    """`needs` is not part of the specification: only submitting the job checks it."""
    page = bob.get("/submit/").content.decode()
    answer = bob.post("/submit/convert/?from=form", posted(roles="- {name: ps, wrkers: 1}")).content.decode()
    places = re.compile(r'id="(problem-\w+)"')
    assert set(places.findall(page)) - set(places.findall(answer)) == {"problem-needs"}
    assert re.search(r'id="problem-roles"[^>]*>[^<]*wrkers', answer)


def test_an_edit_of_the_yaml_sends_the_form_back_only_if_it_is_right(bob: Client) -> None:
    right = posted() | {"yaml": "name: a\ncommand: b\nvariables: {X: '1'}"}
    html = bob.post("/submit/convert/?from=yaml", right).content.decode()
    assert "X=1" in html
    assert 'id="spec-fields"' in html
    html = bob.post(
        "/submit/convert/?from=yaml", posted() | {"yaml": "name: a\ncolour: red"}
    ).content.decode()
    assert "<code>colour</code>: is not a field of a job spec" in html
    assert 'id="spec-fields"' not in html


def test_the_preflight_tells_never_from_later(bob: Client) -> None:
    never = bob.post("/submit/convert/?from=form", posted(gpus_per_worker="8")).content.decode()
    assert "can never run" in never
    assert "can never run" not in bob.post("/submit/convert/?from=form", posted()).content.decode()


def test_a_job_that_can_never_run_shows_every_reason_and_needs_confirmation(bob: Client) -> None:
    data = posted(workers="3", gpus_per_worker="3")
    shown = bob.post("/submit/convert/?from=form", data).content.decode()
    for text in (shown, bob.post("/submit/", data).content.decode()):
        assert "it needs 9 GPUs of one type at once, and the cluster has 4 A100 and 4 V100." in text
        assert "Astro may hold at most 6 GPUs at once" in text
        assert 'name="even_if_never" value="on">' in text
    assert not Job.objects.filter(name="train").exists()
    assert bob.post("/submit/", data | {"even_if_never": "on"}).status_code == 302
    job = Job.objects.get(name="train")
    run_round(cluster_id=job.cluster_id, force=Round.Kind.FILL)
    page = bob.get(f"/jobs/{job.pk}/").content.decode()
    assert "Astro may hold at most 6 GPUs at once" in page
    assert "the cluster has 4 A100 and 4 V100." in page


def test_a_visible_job_can_be_cloned(scene: Scene, bob: Client) -> None:
    html = bob.get(f"/submit/?clone={scene.job.pk}").content.decode()
    assert 'value="supernova 2"' in html  # two jobs of one name could not be told apart
    assert "SUPERNOVA=1987A" in html
    assert bob.get(f"/submit/?clone={scene.other.pk}").status_code == 404
    assert bob.get("/submit/?clone=x").status_code == 404


def test_whoever_comes_back_to_a_submitted_form_sees_its_job_and_a_clone_of_it(
    scene: Scene, bob: Client, browser_of
) -> None:
    bob.post("/submit/", posted(request_key="k1", variables="LR=0.1"))
    job = Job.objects.latest("id")
    page = bob.get("/submit/?sent=k1").content.decode()
    assert f'You submitted this form as job <a href="/jobs/{job.pk}/">#{job.pk} train</a>' in page
    assert 'value="train 2"' in page
    assert "LR=0.1" in page
    again = posted(
        clone=job.pk, name="train 2", request_key=re.search(r'name="request_key" value="(\w+)"', page)[1]
    )
    assert bob.post("/submit/", again).status_code == 302
    assert Job.objects.latest("id").cloned_from == job
    for key, browser in (("k2", bob), ("k1", browser_of(scene.people.alice))):
        assert "You submitted this form" not in browser.get(f"/submit/?sent={key}").content.decode()


def test_a_team_of_others_cannot_be_chosen(scene: Scene, bob: Client) -> None:
    response = bob.post("/submit/", posted(tenant=str(scene.people.bio.pk)))
    assert response.status_code == 422
    assert not Job.objects.filter(name="train").exists()


def test_a_user_in_no_team_sees_that_instead_of_the_form(scene: Scene, browser_of) -> None:
    assert "no team" in browser_of(scene.people.olga).get("/submit/").content.decode()


def test_a_post_without_the_csrf_token_is_refused(scene: Scene, browser_of) -> None:
    strict = browser_of(scene.people.bob, enforce_csrf_checks=True)
    assert strict.post("/submit/", posted()).status_code == 403
    assert strict.post("/submit/convert/?from=form", posted()).status_code == 403


def test_the_example_fills_the_form_with_a_right_spec(scene: Scene, browser_of) -> None:
    browser = browser_of(scene.people.bob)
    assert "?example=digits" in browser.get("/submit/").content.decode()
    draft = browser.get("/submit/?example=digits").context["draft"]
    assert "digits/train.py" in draft.spec.command
    assert draft.preflight is not None


def test_a_job_that_can_never_run_has_no_price(scene: Scene, browser_of) -> None:
    post = {
        "name": "n",
        "command": "c",
        "workers": "1",
        "gpus_per_worker": "1",
        "checkpoint_grace_seconds": "1",
    }
    post |= {"priority": "0", "progress_pattern": Fields().progress_pattern}
    browser = browser_of(scene.people.bob)
    assert "an hour</dd>" in browser.post("/submit/convert/?from=form", post).content.decode()
    never = browser.post("/submit/convert/?from=form", post | {"gpus_per_worker": "60"}).content.decode()
    assert "can never run" in never
    assert "an hour</dd>" not in never


def test_a_user_in_no_team_sees_whom_to_ask(scene: Scene, browser_of) -> None:
    assert "Add yourself to a team" in browser_of(scene.people.ada).get("/submit/").content.decode()
    assert "Ask an admin" in browser_of(scene.people.olga).get("/submit/").content.decode()


def test_a_long_command_is_one_line_of_yaml() -> None:
    assert JobSpec(name="n", command="word " * 60 + "end").to_yaml().count("\n") == 3


def test_no_style_attribute_is_sent_or_copied_which_the_csp_refuses(bob: Client) -> None:
    """No response contains a style attribute, and htmx is configured not to copy style attributes when it updates a
    page.

    The content security policy (CSP) refuses such attributes. A browser itself adds one when a user resizes a text
    field.
    """
    page = bob.get("/submit/?example=digits")
    config = json.loads(re.search(r"name=\"htmx-config\" content='([^']*)'", page.content.decode())[1])
    assert "style" in config["morphIgnore"]
    assert page["Content-Security-Policy"].count("style-src 'self'") == 1
    swapped = bob.post("/submit/convert/?from=yaml", posted()).content.decode()
    assert not re.search(r"<[^>]*\sstyle=", page.content.decode() + swapped)


def test_the_page_says_that_comments_in_the_yaml_do_not_last(bob: Client) -> None:
    assert (
        "Editing the form rewrites the YAML and removes your comments and formatting from it."
        in bob.get("/submit/").content.decode()
    )


def test_another_cluster_has_other_environments_and_generations(scene: Scene) -> None:
    other = Cluster.objects.create(name="east", backend=Cluster.Backend.KUBERNETES)
    h100 = Generation.objects.create(name="H100")
    Node.objects.create(cluster=other, name="east-0", generation=h100, gpus=8)
    client = Client()
    client.force_login(scene.people.bob)
    form = {
        "drawn_for": scene.world.cluster.pk, "cluster": other.pk, "name": "moved", "command": "true", "workers": "1",
        "gpus_per_worker": "1", "environment": "python", "generations": ["V100"],
        "checkpoint_grace_seconds": "30", "priority": "0", "progress_pattern": DEFAULT_PROGRESS,
    }  # fmt: skip
    page = client.post(reverse("convert_spec") + "?from=form", form).content.decode()
    assert 'id="spec-fields"' in page
    assert "H100" in page
    assert "A container image." in page
    assert "V100" not in page
    form |= {"drawn_for": other.pk, "environment": "registry/train:1", "generations": ["H100"]}
    page = client.post(reverse("convert_spec") + "?from=form", form).content.decode()
    assert 'id="spec-fields"' not in page, "what is being typed stays as it is"


def test_members_of_only_an_archived_team_see_that(scene: Scene, browser_of) -> None:
    people = scene.people
    bio = browser_of(people.charlie)
    Tenant.objects.filter(pk=people.bio.pk).update(archived_at=now_from_database())
    for page in ("/", "/submit/", "/schedules/new/", "/services/new/", "/sessions/new/"):
        html = bio.get(page).content.decode()
        assert "The team Bio is archived. An admin can restore archived teams." in html, page
        assert "Ask an admin to add you to a team" not in html, page
    stranger = browser_of(make.user("dora"))
    assert "archived" not in stranger.get("/").content.decode()
    assert "Ask an admin to add you to a team" in stranger.get("/submit/").content.decode()
    Membership.objects.create(tenant=people.astro, user=people.charlie, role="member", tickets=1)
    assert "archived" not in bio.get("/").content.decode()


def test_a_job_that_can_never_run_marks_the_gpus_field(scene: Scene, bob: Client) -> None:
    answer = bob.post("/submit/", posted(gpus_per_worker="64"))
    html = answer.content.decode()
    assert answer.status_code == 422
    assert re.search(r'name="gpus_per_worker"[^>]*aria-invalid="true"', html)
    assert "each worker needs 64 GPUs on one node" in html


@pytest.mark.parametrize(
    ("problem", "told"),
    [
        ("must be a number", "Must be a number"),
        ("nonsense is not a supported way to write times", "nonsense is not a supported way to write times"),
        ("mustard is not a supported way to write times", "mustard is not a supported way to write times"),
        ("", ""),
    ],
)
def test_a_problem_begins_with_a_capital_except_for_quoted_input(problem: str, told: str) -> None:
    assert as_sentence(problem) == told
