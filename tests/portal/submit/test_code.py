"""The submit form takes code: files that come with any POST are stored, and the job names them."""

from __future__ import annotations

import io
import tarfile
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
