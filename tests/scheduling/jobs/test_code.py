"""A team's code uploads: who may use them, which jobs keep them, and when they are deleted."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection, transaction
from django.test import Client
from django.utils import timezone

from accounting.core.errors import NotAllowed, Refused
from accounting.models import AuditEvent, User
from scheduling.backends.base import BackendError
from scheduling.core.code_archives import Packed, pack_files
from scheduling.execution.operations import describe_gang
from scheduling.jobs.actions import cancel_job
from scheduling.jobs.code import bounds, code_of, find_code, upload_code
from scheduling.jobs.preflight import preflight
from scheduling.jobs.submitting import submit_within
from scheduling.models import Cluster, CodeUpload, Job
from scheduling.retention import remove_code
from scheduling.schedules.actions import Terms, create_schedule, delete_schedule
from scheduling.services.actions import create_service, remove_service
from scheduling.spec.job_spec import JobSpec, SpecError
from tests import make
from tests.scheduling.world import World, world
from tests.waiting import wait_for

DAY = timedelta(days=1)


@pytest.fixture
def lab(transactional_db: None) -> World:
    return world(v100=4)


def packed(text: str = "print(1)") -> Packed:
    return pack_files([("train.py", text.encode())], bounds())


def upload(lab: World, text: str = "print(1)") -> CodeUpload:
    return upload_code(actor=lab.people.bob, tenant=lab.people.astro, packed=packed(text))


def submit(lab: World, digest: str, owner: User | None = None, **fields: Any) -> Job:
    owner = owner or lab.people.bob
    tenant = lab.people.bio if owner == lab.people.charlie else lab.people.astro
    return lab.submit(owner, tenant, code={"upload": digest}, **fields)


def grow_old(days: int = 40) -> None:
    CodeUpload.objects.update(uploaded_at=timezone.now() - days * DAY)


def test_a_job_gets_the_code_that_its_spec_names(lab: World) -> None:
    made = upload(lab)
    job = submit(lab, made.digest)
    lab.quantum()
    gang = describe_gang(lab.lease(job), JobSpec.stored(job.spec), 1000)
    assert gang.code is not None
    assert (gang.code.digest, gang.code.content) == (made.digest, packed().content)
    assert JobSpec.from_yaml(JobSpec.stored(job.spec).to_yaml()).code == JobSpec.stored(job.spec).code
    assert "print(1)" not in repr(gang)


def test_a_team_keeps_equal_content_once(lab: World) -> None:
    first, again = upload(lab), upload_code(actor=lab.people.alice, tenant=lab.people.astro, packed=packed())
    assert first.pk == again.pk
    assert submit(lab, first.digest).code.upload == submit(lab, first.digest).code.upload
    assert CodeUpload.objects.count() == 1
    assert AuditEvent.objects.filter(verb="code.upload").count() == 1


def test_another_teams_upload_is_not_found_through_its_digest(lab: World) -> None:
    digest = upload(lab).digest
    unknown = "sha256:" + "0" * 64
    said = set()
    for guess in (digest, unknown):
        with pytest.raises(SpecError) as refusal:
            submit(lab, guess, lab.people.charlie)
        said.add(str(refusal.value))
        spec = JobSpec(name="x", command="x", code={"upload": guess})
        with pytest.raises(SpecError, match="there is no such upload"):
            preflight(actor=lab.people.charlie, tenant=lab.people.bio, cluster=lab.cluster, spec=spec)
    assert len(said) == 1, "the answer reveals whether the upload exists"
    with pytest.raises(NotAllowed):
        upload_code(actor=lab.people.charlie, tenant=lab.people.astro, packed=packed())
    assert not CodeUpload.objects.visible_to(lab.people.charlie).exists()


def test_a_member_of_both_teams_takes_an_upload_along(lab: World) -> None:
    digest = upload(lab).digest
    make.membership(lab.people.bob, lab.people.bio)
    job = lab.submit(lab.people.bob, lab.people.bio, code={"upload": digest})
    assert job.code.upload.tenant == lab.people.bio
    assert submit(lab, digest, lab.people.charlie).code.upload == job.code.upload
    assert CodeUpload.objects.count() == 2


def test_an_archived_team_and_a_full_team_take_no_uploads(lab: World, settings: Any) -> None:
    settings.FAIRLOT_CODE_TEAM_BYTES = len(packed().content) + 10
    upload(lab)
    with pytest.raises(Refused, match="The uploads of Astro take"):
        upload(lab, "print(2)")
    lab.people.astro.archived_at = timezone.now()
    lab.people.astro.save()
    with pytest.raises(Refused, match="archived"):
        upload(lab)


def test_a_large_upload_is_refused_for_containers_with_what_to_do(lab: World) -> None:
    digest = upload(lab).digest
    cluster = Cluster.objects.create(name="k8s", backend=Cluster.Backend.KUBERNETES)
    spec = JobSpec(name="x", command="x", environment="x", code={"upload": digest})
    where: dict[str, Any] = {"actor": lab.people.bob, "tenant": lab.people.astro, "cluster": cluster}
    assert find_code(**where, spec=spec) is not None
    CodeUpload.objects.update(size=700 * 1024 + 1)
    with pytest.raises(
        SpecError, match=r"k8s delivers at most 700 KiB .* put the code into the image or on a volume"
    ):
        find_code(**where, spec=spec)


@pytest.mark.parametrize("value", ["x", {"upload": "sha256:1"}, {}, {"upload": ""}, {"path": "x"}])
def test_a_field_that_names_no_upload_is_refused(value: object) -> None:
    with pytest.raises(SpecError) as refusal:
        JobSpec.parse({"name": "x", "command": "x", "code": value})
    assert all(field.startswith("code") for field in refusal.value.problems)


def test_an_upload_stays_while_a_job_with_files_needs_it(lab: World) -> None:
    digest = upload(lab).digest
    upload(lab, "unused")
    job = submit(lab, digest)
    grow_old()
    assert remove_code(after=41 * DAY) == 0
    assert remove_code(after=30 * DAY) == 1
    cancel_job(actor=lab.people.bob, job=job)
    assert remove_code(after=30 * DAY) == 0
    Job.objects.update(files_removed_at=timezone.now())
    assert remove_code(after=30 * DAY) == 1
    assert not CodeUpload.objects.exists()
    job.refresh_from_db()
    with pytest.raises(BackendError, match="was deleted"):
        code_of(job, JobSpec.stored(job.spec))
    with pytest.raises(SpecError, match="Upload the code again"):
        submit(lab, digest)


def test_an_upload_stays_while_a_schedule_names_it(lab: World) -> None:
    digest = upload(lab).digest
    spec = JobSpec(name="nightly", command="python train.py", code={"upload": digest})
    schedule = create_schedule(
        actor=lab.people.bob,
        tenant=lab.people.astro,
        cluster=lab.cluster,
        spec=spec,
        terms=Terms("@daily", "UTC"),
    )
    grow_old()
    assert remove_code(after=30 * DAY) == 0
    delete_schedule(actor=lab.people.bob, schedule=schedule)
    assert remove_code(after=30 * DAY) == 1


def test_an_upload_stays_while_a_service_names_it(lab: World) -> None:
    digest = upload(lab).digest
    spec = JobSpec(name="web", command="python train.py", port=8000, code={"upload": digest})
    service = create_service(actor=lab.people.bob, tenant=lab.people.astro, cluster=lab.cluster, spec=spec)
    grow_old()
    assert remove_code(after=30 * DAY) == 0
    remove_service(actor=lab.people.bob, service=service)
    assert remove_code(after=30 * DAY) == 1


def test_an_upload_again_begins_the_retention_again(lab: World) -> None:
    upload(lab)
    grow_old()
    upload(lab)
    assert remove_code(after=30 * DAY) == 0


def test_a_submit_and_the_retention_at_the_same_moment_agree(lab: World) -> None:
    """The submit has found the upload and not committed; the retention waits for it, and then keeps the upload."""
    digest = upload(lab).digest
    grow_old()
    spec = JobSpec(name="x", command="x", code={"upload": digest})

    def remove() -> int:
        try:
            return remove_code(after=30 * DAY)
        finally:
            connection.close()

    where: dict[str, Any] = {"actor": lab.people.bob, "tenant": lab.people.astro, "cluster": lab.cluster}
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            find_code(**where, spec=spec, lock=True)
            removal = pool.submit(remove)
            wait_for(lambda: removal.done() or is_somebody_waiting(), what="the retention at the lock")
            assert not removal.done(), "the retention did not wait for the submit"
            job = submit_within(**where, spec=spec)
        assert removal.result(60) == 0
    assert Job.objects.get(pk=job.pk).code.upload.digest == digest


def is_somebody_waiting() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return bool(cursor.fetchone()[0])


# --- the API -------------------------------------------------------------------------------------


@pytest.fixture
def bob(lab: World) -> Client:
    client = Client()
    client.force_login(lab.people.bob)
    return client


def test_the_api_takes_an_archive_or_files_and_answers_with_the_digest(lab: World, bob: Client) -> None:
    raw = bob.generic("POST", "/api/v1/code?team=astro", packed().content, content_type="application/gzip")
    assert raw.status_code == 201, raw.content
    assert raw.json() == {
        "digest": packed().digest, "team": "astro", "size": len(packed().content), "unpacked": 8, "files": 1,
        "paths": ["train.py"],
        "proposals": {"name": "train", "command": "python train.py", "requirements": ""},
    }  # fmt: skip
    files = [SimpleUploadedFile("train.py", b"print(1)")]
    assert bob.post("/api/v1/code", {"code_files": files}).json()["digest"] == packed().digest
    job = {"spec": {"name": "x", "command": "python train.py", "code": {"upload": packed().digest}}}
    made = bob.post("/api/v1/jobs", job, content_type="application/json")
    assert made.status_code == 201, made.content
    assert made.json()["spec"]["code"]["upload"] == packed().digest


def test_the_api_refuses_what_is_no_upload(lab: World, bob: Client, settings: Any) -> None:
    refused = bob.generic("POST", "/api/v1/code", b"hello", content_type="application/zip")
    assert refused.status_code == 409
    assert "not an archive" in refused.json()["detail"]
    assert bob.post("/api/v1/code", {"x": "y"}).status_code == 409
    other = bob.generic("POST", "/api/v1/code?team=bio", packed().content, content_type="application/gzip")
    assert other.status_code == 422
    assert "astro" in other.json()["problems"]["team"]
    settings.FAIRLOT_CODE_LIMIT_BYTES = 10
    large = bob.generic("POST", "/api/v1/code", packed().content, content_type="application/gzip")
    assert "more than" in large.json()["detail"]
    assert not CodeUpload.objects.exists()
