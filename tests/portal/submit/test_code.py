"""The submit form takes code: files that come with any POST are stored, and the job names them."""

from __future__ import annotations

import io
import re
import tarfile
import zipfile
from html import unescape
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse

from scheduling.models import CodeUpload, Job
from tests.portal.scene import Scene
from tests.portal.submit.test_submit import posted

SCRIPT = b"print('step 1')\n"


@pytest.fixture
def bob(scene: Scene, browser_of: Any) -> Client:
    client: Client = browser_of(scene.people.bob)
    return client


def script(content: bytes = SCRIPT) -> SimpleUploadedFile:
    return SimpleUploadedFile("train.py", content)


def test_a_chosen_file_becomes_the_jobs_code_and_a_clone_keeps_it(bob: Client) -> None:
    answer = bob.post(reverse("submit"), posted() | {"code_files": [script()]})
    job = Job.objects.latest("pk")
    assert answer.status_code == 302, answer.content.decode()
    upload = CodeUpload.objects.get()
    assert job.spec["code"]["upload"] == upload.digest
    assert job.code.upload == upload
    page = bob.get(reverse("submit"), {"clone": job.pk}).content.decode()
    assert upload.digest in page
    assert "train.py" in page
    again = bob.post(reverse("submit"), posted(code_upload=upload.digest, request_key="k2"))
    assert again.status_code == 302
    assert CodeUpload.objects.count() == 1


def test_a_file_without_a_submit_is_stored_and_shown_in_form_and_yaml(bob: Client) -> None:
    page = bob.post(
        reverse("convert_spec") + "?from=form", posted() | {"code_files": [script()]}
    ).content.decode()
    digest = CodeUpload.objects.get().digest
    assert f'name="code_upload" value="{digest}"' in page
    assert f"upload: {digest}" in page
    assert 'id="code-section" hx-swap-oob="true"' in page
    page = bob.post(
        reverse("convert_spec") + "?from=form", posted(code_upload=digest) | {"code_remove": "on"}
    ).content.decode()
    assert digest not in page
    other = bob.post(reverse("convert_spec") + "?from=form", posted(code_upload=digest)).content.decode()
    assert "code-section" not in other, "the section is drawn anew while somebody may type in it"


def test_a_refused_upload_submits_nothing_and_says_why_beside_the_field(bob: Client) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        about = tarfile.TarInfo("../x")
        archive.addfile(about)

    def evil() -> dict[str, Any]:
        return posted() | {"code_files": [SimpleUploadedFile("evil.tar.gz", buffer.getvalue())]}

    page = bob.post(reverse("submit"), evil())
    assert page.status_code == 422
    assert "contains .." in page.content.decode()
    assert not Job.objects.filter(name="train").exists()
    part = bob.post(reverse("convert_spec") + "?from=form", evil()).content.decode()
    assert "contains .." in part
    assert not CodeUpload.objects.exists()


def test_another_teams_digest_shows_nothing_and_submits_nothing(
    scene: Scene, bob: Client, browser_of: Any
) -> None:
    bob.post(reverse("submit"), posted() | {"code_files": [script()]})
    digest = CodeUpload.objects.get().digest
    charlie = browser_of(scene.people.charlie)
    page = charlie.post(reverse("submit"), posted(code_upload=digest))
    assert page.status_code == 422
    assert "train.py," not in page.content.decode()
    assert "is not available to you any more" in page.content.decode()
    assert Job.objects.filter(tenant=scene.people.bio, spec__code__upload=digest).count() == 0


def archive_of(**files: str) -> SimpleUploadedFile:
    """Returns a zip archive of a folder. The keyword `train_py` is its file train.py, and so on."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as made:
        for name, text in files.items():
            made.writestr(f"project/{name.replace('_', '.')}", text)
    return SimpleUploadedFile("my training.zip", buffer.getvalue())


def field(page: str, name: str) -> str:
    """Returns what the field of the form contains that a page or a swapped part of it shows."""
    found = re.search(rf'<textarea[^>]* name="{name}"[^>]*>\n(.*?)</textarea>', page, re.DOTALL)
    found = found or re.search(rf'<input[^>]* name="{name}" value="(.*?)"', page)
    assert found, f"the part has no field {name}"
    return unescape(found[1])


FOUND = {"name": "my training", "command": "cd project && python train.py", "requirements": "humanize==4.9.0"}


def test_files_propose_name_command_and_packages_for_what_the_user_left_empty(bob: Client) -> None:
    url, sent = reverse("convert_spec") + "?from=form", posted(name="", command="")
    files = {"train_py": "", "helpers_py": "", "requirements_txt": "humanize==4.9.0\n"}
    page = bob.post(url, sent | {"code_files": [archive_of(**files)]}).content.decode()
    assert {name: field(page, name) for name in FOUND} == FOUND
    assert 'id="requirements-fold" data-kept open' in page
    assert "Clear the field to install none of these packages" in page
    assert "requirements: humanize==4.9.0" in unescape(page.split('id="yaml"')[1])
    # Files that replace them replace what they proposed, too.
    sent |= FOUND | {name: field(page, name) for name in ("code_upload", "code_name")}
    other = archive_of(main_py="", requirements_txt="humanize==4.10.0")
    other.name = "next.zip"
    page = bob.post(url, sent | {"code_files": [other]}).content.decode()
    assert field(page, "command") == "cd project && python main.py"
    assert field(page, "requirements") == "humanize==4.10.0"
    assert (field(page, "name"), field(page, "code_name")) == ("next", "next.zip")


def test_files_change_nothing_that_the_user_typed(bob: Client) -> None:
    url, typed = reverse("convert_spec") + "?from=form", posted(requirements="rich")
    files = {"train_py": "", "requirements_txt": "humanize"}
    page = bob.post(url, typed | {"code_files": [archive_of(**files)]}).content.decode()
    assert 'id="spec-fields"' not in page, "the fields are drawn again while somebody types"
    assert field(page, "requirements") == "rich"
    assert "requirements.txt found, but the field keeps what you wrote" in page
    kept = {"requirements": "", "code_upload": field(page, "code_upload")}
    assert "humanize" not in bob.post(url, typed | kept).content.decode(), (
        "a cleared field is filled in again"
    )


SLURM = b"#!/bin/bash\n#SBATCH --job-name=from-slurm\n#SBATCH --gres=gpu:a100:2\n#SBATCH -A lab\npython train.py\n"
OFFER = re.compile(r'name="do" value="(file-[^"]*)"')


def test_a_job_file_of_another_system_is_offered_as_the_jobs_file(bob: Client) -> None:
    url, sent = reverse("convert_spec") + "?from=form", posted(name="", command="")
    files = [SimpleUploadedFile("run.sbatch", SLURM)]
    page = unescape(bob.post(url, sent | {"code_files": files}).content.decode())
    assert "run.sbatch</code> is a Slurm batch script" in page
    assert "Use run.sbatch as the job's file, or write the command" in page
    # The page converts once more when the upload is there, and keeps saying so until there is a command.
    kept = sent | {"code_upload": field(page, "code_upload")}
    assert "Use run.sbatch as" in bob.post(url, kept).content.decode()
    refused = bob.post(reverse("submit"), kept)
    assert (refused.status_code, "Use run.sbatch as" in refused.content.decode()) == (422, True)
    kept |= {"command": "bash run.sbatch"}
    assert 'id="code-section"' not in bob.post(url, kept).content.decode(), "the file stays code"
    page = bob.post(reverse("submit"), kept | {"do": OFFER.findall(page)[0]}).content.decode()
    assert "Import: Slurm batch script" in page
    assert "<code>line 4: -A</code>" in page
    assert (field(page, "name"), field(page, "gpus_per_worker")) == ("from-slurm", "2")
    assert field(page, "code_upload") == "", "the job's file is copied to the job"


def test_a_job_file_among_others_runs_in_their_folder_with_their_packages(bob: Client) -> None:
    url, sent = reverse("convert_spec") + "?from=form", posted(name="", command="")
    files = archive_of(
        train_py="", run_sbatch=SLURM.decode(), requirements_txt="humanize", params_yaml="lr: 0.1"
    )
    page = bob.post(url, sent | {"code_files": [files]}).content.decode()
    assert OFFER.findall(page) == ["file-project/run.sbatch"]
    sent |= {name: field(page, name) for name in ("code_upload", "code_name", "requirements", "command")}
    sent |= {"do": "file-project/run.sbatch"}
    page = bob.post(reverse("submit"), sent).content.decode()
    assert field(page, "command").startswith("cd project\n")
    assert "python train.py" in field(page, "command")
    assert {name: field(page, name) for name in ("code_upload", "requirements")} == {
        "code_upload": sent["code_upload"],
        "requirements": "humanize",
    }


def test_a_pasted_job_file_keeps_the_code_that_was_chosen_before(bob: Client) -> None:
    page = bob.post(reverse("convert_spec") + "?from=form", posted() | {"code_files": [script()]})
    digest = field(page.content.decode(), "code_upload")
    pasted = posted(code_upload=digest) | {"yaml": SLURM.decode()}
    page = bob.post(reverse("convert_spec") + "?from=yaml", pasted).content.decode()
    assert field(page, "name") == "from-slurm"
    assert field(page, "code_upload") == digest
    assert f"upload: {digest}" in page


def test_files_of_others_are_not_read_as_job_files(scene: Scene, bob: Client, browser_of: Any) -> None:
    files = {"code_files": [SimpleUploadedFile("run.sbatch", SLURM)]}
    page = bob.post(reverse("convert_spec") + "?from=form", posted() | files).content.decode()
    asked = posted(code_upload=field(page, "code_upload")) | {"do": "file-run.sbatch"}
    page = browser_of(scene.people.charlie).post(reverse("submit"), asked).content.decode()
    assert "Import: Slurm" not in page
    assert "from-slurm" not in page
