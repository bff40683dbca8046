"""A file of another system that is pasted into the YAML is converted, and the page shows its report."""

from __future__ import annotations

import re

import pytest
from django.test import Client

from portal.pipelines.editing import EXAMPLE
from portal.submit.fields import Fields
from scheduling.core.code_archives import pack_files
from scheduling.jobs.code import bounds, upload_code
from scheduling.models import Cluster, Job, Pipeline, Schedule, Sweep
from tests.portal.scene import Scene
from tests.portal.submit.test_submit import posted

SLURM = (
    "#!/bin/bash\r\n#SBATCH --job-name=from-slurm\r\n#SBATCH --gres=gpu:a100:2\r\n#SBATCH -A lab\r\n"
    "python train.py\r\n"
)
REFUSED = (
    "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n"
    "spec: {hostNetwork: true, containers: [{image: a, command: [b], securityContext: {privileged: true}}]}"
)
SEVERAL = """
apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly}
spec:
  schedule: "30 2 * * *"
  timeZone: Europe/Berlin
  jobTemplate: {spec: {template: {spec: {containers: [{image: a, command: [sh, -c, python nightly.py]}]}}}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: once}
spec: {template: {spec: {containers: [{image: a, command: [sh, -c, python once.py]}]}}}
"""


@pytest.fixture
def bob(scene: Scene, browser_of) -> Client:
    return browser_of(scene.people.bob)


def field(html: str, name: str) -> str:
    found = re.search(rf'name="{name}" value="([^"]*)"', html)
    return found[1] if found else ""


def test_a_pasted_script_fills_form_and_yaml_and_shows_its_report(bob: Client) -> None:
    html = bob.post("/submit/convert/?from=yaml", posted() | {"yaml": SLURM}).content.decode()
    assert field(html, "name") == "from-slurm"
    assert field(html, "gpus_per_worker") == "2"
    assert "gpus_per_worker: 2" in html
    assert "Import: Slurm batch script" in html
    assert html.index("<code>line 4: -A</code>") < html.index("<code>line 2: --job-name</code>")
    assert '<ul class="field-error">' not in html


def test_fields_that_the_cluster_lacks_are_dropped_and_reported(bob: Client) -> None:
    script = SLURM.replace("#SBATCH --gres", "#SBATCH --mem=8G\n#SBATCH --gres")
    local = bob.post("/submit/convert/?from=yaml", posted() | {"yaml": script}).content.decode()
    assert "memory:" not in local
    said = local.partition("<code>line 3: --mem</code>")[2].partition("</tr>")[0]
    assert "processes on the portal" in said
    Cluster.objects.update(backend=Cluster.Backend.KUBERNETES)
    pods = bob.post("/submit/convert/?from=yaml", posted() | {"yaml": script}).content.decode()
    assert "memory:" in pods


def test_a_file_that_cannot_be_imported_has_one_problem_and_a_report(bob: Client) -> None:
    html = bob.post("/submit/convert/?from=yaml", posted() | {"yaml": REFUSED}).content.decode()
    assert html.count("<li>") == 1
    assert "This text cannot be imported." in html
    assert "not imported" in html
    assert html.index("spec<wbr>.hostNetwork") < html.index("metadata<wbr>.name")
    assert 'id="spec-fields"' not in html  # the form stays as it is


def test_nothing_is_submitted_before_the_report_was_shown(bob: Client) -> None:
    before = Job.objects.count()
    data = posted() | {"yaml": SLURM.replace("#SBATCH --gres", "#SBATCH -G1 #")}
    shown = bob.post("/submit/", data)
    assert shown.status_code == 422
    assert Job.objects.count() == before
    html = shown.content.decode()
    assert "Read the report" in html
    draft = shown.context["draft"]
    again = data | {"name": draft.fields.name, "command": draft.fields.command, "yaml": draft.yaml,
                    "expected_hours": "", "agreed": draft.agreed, "foreign": SLURM}  # fmt: skip
    assert bob.post("/submit/", again).status_code == 302
    assert Job.objects.latest("pk").name == "from-slurm"


def test_one_of_several_works_is_taken_and_the_others_stay(bob: Client) -> None:
    html = bob.post("/submit/convert/?from=yaml", posted() | {"yaml": SEVERAL}).content.decode()
    assert "The text describes 1 job, 1 schedule." in html
    assert 'value="take-0" formaction="/schedules/new/"' in html
    shown = bob.post("/submit/", posted() | {"yaml": SEVERAL, "do": "take-1"})
    assert shown.context["draft"].fields.name == "once"
    assert 'value="take-0"' in shown.content.decode()
    for unknown in ("take-9", "take--1", "take--9"):
        assert bob.post("/submit/", posted() | {"yaml": SEVERAL, "do": unknown}).context["draft"].spec is None


def test_a_schedule_opens_its_form_with_its_times(bob: Client) -> None:
    shown = bob.post("/schedules/new/", posted() | {"yaml": "x", "foreign": SEVERAL, "do": "take-0"})
    assert shown.status_code == 200
    timing, draft = shown.context["timing"], shown.context["draft"]
    assert (timing.expression, timing.time_zone, timing.overlap) == ("30 2 * * *", "Europe/Berlin", "allow")
    assert (draft.fields.name, timing.problems) == ("nightly", {})
    assert not Schedule.objects.filter(name="nightly").exists()


def test_an_array_opens_the_form_of_a_sweep_which_one_more_click_creates(bob: Client) -> None:
    text = "#!/bin/sh\n#SBATCH -J many\n#SBATCH --array=0-3%2\npython x.py $SLURM_ARRAY_TASK_ID\n"
    html = bob.post("/submit/convert/?from=yaml", posted() | {"yaml": text}).content.decode()
    assert "describes a sweep of 4 members, 2 at once, not a job" in html
    button = 'value="take-0" formaction="/sweeps/new/">Create a sweep of 4 members, 2 at once</button>'
    assert html.count("take-") == html.count(button) == 1
    shown = bob.post("/sweeps/new/", posted() | {"yaml": text, "do": "take-0"})
    swept, draft = shown.context["swept"], shown.context["draft"]
    assert (swept.kind, swept.count, swept.at_once, swept.problems) == ("array", "4", "2", {})
    assert shown.context["preview"].size == 4
    fields = {name: getattr(draft.fields, name) for name in Fields.__dataclass_fields__}
    rest = {"yaml": draft.yaml, "agreed": draft.agreed, "request_key": draft.request_key, "do": "submit"}
    assert bob.post("/sweeps/new/", fields | swept.to_dict() | rest | {"foreign": text}).status_code == 302
    made = Sweep.objects.get(name="many")
    assert (made.size, made.at_once) == (4, 2)


def test_a_list_of_tasks_fills_the_parameters_of_a_sweep(bob: Client) -> None:
    text = "#!/bin/sh\n#SBATCH -J many\n#SBATCH --array=1,5,7-9\npython x.py\n"
    shown = bob.post("/sweeps/new/", posted() | {"yaml": text, "do": "take-0"})
    assert shown.context["swept"].parameters.split("\n") == ["SLURM_ARRAY_TASK_ID", "1", "5", "7", "8", "9"]
    assert shown.context["preview"].size == 5


CHAIN = "".join(
    f"---\nname: {name}\nresources: {{cpus: 4, accelerators: A100}}\nrun: ./{name}.sh\n" for name in "ab"
)


def test_a_chain_opens_the_form_of_a_pipeline_which_one_more_click_creates(bob: Client, scene: Scene) -> None:
    html = bob.post("/submit/convert/?from=yaml", posted() | {"yaml": CHAIN}).content.decode()
    assert "describes a pipeline of 2 steps, not a job" in html
    assert 'value="take-0" formaction="/pipelines/new/">Create a pipeline of 2 steps</button>' in html
    given = posted() | {"yaml": CHAIN, "do": "take-0"}
    form = bob.post("/pipelines/new/", given).context["form"]
    sent = {name: form.initial[name] for name in ("yaml", "team", "cluster", "request_key")}
    assert bob.post("/pipelines/new/", sent).status_code == 302
    made = Pipeline.objects.get()
    assert (made.tenant_id, made.cluster_id) == (form.initial["team"], form.initial["cluster"])
    assert made.steps.count() == 2
    packed = pack_files([("a.sh", b"true")], bounds())
    upload = upload_code(actor=scene.people.bob, tenant=scene.people.astro, packed=packed)
    for digest, kept in ((upload.digest, [upload]), ("0" * 64, [])):
        rows = bob.post("/pipelines/new/", given | {"code_upload": digest}).context["code_rows"]
        assert [row.upload for row in rows] == kept


def test_what_is_no_pipeline_leaves_the_form_of_pipelines_as_it_is(bob: Client) -> None:
    shown = bob.post("/pipelines/new/", posted() | {"yaml": SLURM, "do": "take-0"})
    assert shown.context["form"].initial["yaml"] == EXAMPLE


def test_a_search_fills_the_metric_and_the_values_of_a_sweep(bob: Client) -> None:
    text = (
        "searcher: {name: grid, metric: acc, smaller_is_better: false}\nentrypoint: python a.py\n"
        "hyperparameters: {lr: {type: double, minval: 0.1, maxval: 0.3, count: 3}}\n"
    )
    shown = bob.post("/sweeps/new/", posted() | {"yaml": text, "do": "take-0"})
    swept = shown.context["swept"]
    assert (swept.kind, swept.parameters, swept.metric, swept.goal) == (
        "grid",
        "lr = 0.1, 0.2, 0.3",
        "acc",
        "max",
    )
    assert (shown.context["preview"].size, swept.problems) == (3, {})


def test_an_invalid_specification_of_fairlot_is_not_taken_for_a_foreign_file(bob: Client) -> None:
    html = bob.post(
        "/submit/convert/?from=yaml", posted() | {"yaml": "name: a\ncommand: b\nworkers: 0"}
    ).content.decode()
    assert "<code>workers</code>" in html
    assert 'id="imported"' not in html


def test_long_paths_of_the_report_break_before_their_dots(bob: Client) -> None:
    html = bob.post("/submit/convert/?from=yaml", posted() | {"yaml": REFUSED}).content.decode()
    assert "<code>spec<wbr>.containers<wbr>[0]<wbr>.securityContext" in html


def test_each_problem_of_the_roles_is_a_line_of_its_own(bob: Client) -> None:
    roles = "version: 1\nname: a\ncommand: b\nroles:\n- {name: one, workers: 1, cpu: 2, memory: 8Gi}\n"
    html = bob.post("/submit/convert/?from=yaml", posted() | {"yaml": roles}).content.decode()
    shown = html.partition('id="problem-roles"')[2].partition("</div>")[0]
    assert shown.count("<li>role 1, ") == 2


def test_a_job_that_can_never_run_names_the_checkbox_as_the_page_does(bob: Client) -> None:
    html = bob.post("/submit/", posted(workers="40")).content.decode()
    assert "or check “Submit anyway”" in html
    assert re.search(r'name="even_if_never"[^>]*><span>Submit anyway ', html)


def test_what_a_local_cluster_lacks_is_dropped_from_roles_as_well(bob: Client) -> None:
    pod = "{template: {spec: {containers: [{image: %s, command: [sh, -c, %s], resources: {limits: {%s}}}]}}}"
    text = (
        "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: p}\nspec:\n  pytorchReplicaSpecs:\n"
        f"    Master: {pod % ('a', 'python m.py', 'nvidia.com/gpu: 1, cpu: 4, memory: 8Gi')}\n"
        f"    Worker: {pod % ('b', 'python w.py', 'nvidia.com/gpu: 1, cpu: 2, memory: 8Gi')}\n"
    )
    shown = bob.post("/submit/", posted() | {"yaml": text, "do": "yaml"})
    yaml = shown.context["draft"].yaml
    assert "roles:" in yaml
    assert "cpu:" not in yaml
    assert "memory:" not in yaml
    assert not [
        one for one in shown.context["draft"].imported.lines if one.target.endswith((".cpu", ".memory"))
    ]
    assert shown.content.decode().count("processes on the portal") >= 4
    assert shown.context["draft"].problems == {}
    assert "environment" not in yaml
    assert (
        shown.content.decode().count("its environments that has what the program needs: python, system.") == 2
    )
    Cluster.objects.update(backend=Cluster.Backend.KUBERNETES)
    pods = bob.post("/submit/", posted() | {"yaml": text, "do": "yaml"}).context["draft"].yaml
    assert pods.count("memory: 8Gi") == 2
    assert pods.count("environment: a") == 2  # of the job, and of its first role


def test_an_image_that_is_an_environment_of_a_local_cluster_stays(bob: Client) -> None:
    text = SEVERAL.partition("---")[2].replace("image: a", "image: python")
    draft = bob.post("/submit/", posted() | {"yaml": text, "do": "yaml"}).context["draft"]
    assert (draft.fields.environment, draft.problems) == ("python", {})
