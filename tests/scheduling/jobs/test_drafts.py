"""Drafts are kept for their owner, are bounded, keep their code, and end with the submit."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from accounting.core.errors import NotAllowed, Refused
from scheduling import retention
from scheduling.jobs import drafts
from scheduling.jobs.code import upload_code
from scheduling.jobs.drafts import delete_draft, save_draft, submitted_with
from scheduling.jobs.submitting import submit_job
from scheduling.models import CodeUpload, Draft, Job
from scheduling.pipelines.actions import create_pipeline
from scheduling.pipelines.definition import Definition
from scheduling.spec.job_spec import JobSpec, SpecError
from scheduling.sweeps.actions import Rules, create_sweep
from scheduling.sweeps.parameters import Parameters
from scheduling.tasks import remove_code
from tests.scheduling.jobs.test_code import packed
from tests.scheduling.world import World, world


@pytest.fixture
def lab(db: None) -> World:
    return world(v100=4)


def kept(lab: World, key: str = "k", **changes: object) -> Draft:
    given = {"kind": "job", "name": "later", "content": {"yaml": "name: later"}} | changes
    return save_draft(actor=lab.people.bob, request_key=key, **given)


def test_a_form_that_is_kept_again_replaces_its_draft(lab: World) -> None:
    first = kept(lab)
    again = kept(lab, name="much\nlater " + "x" * 200, content={"yaml": "wrong: ["})
    assert again.pk == first.pk
    assert again.name == ("much later " + "x" * 200)[:120]
    assert (Draft.objects.get().content, again.saved_at > first.saved_at) == ({"yaml": "wrong: ["}, True)


def test_only_its_owner_sees_and_deletes_a_draft(lab: World) -> None:
    draft, people = kept(lab), lab.people
    for other in (people.alice, people.charlie, people.olga, people.ada):
        assert not Draft.objects.visible_to(other).exists()
        with pytest.raises(NotAllowed):
            delete_draft(actor=other, draft=draft)
    assert Draft.objects.visible_to(people.bob).get() == draft
    delete_draft(actor=people.bob, draft=draft)
    delete_draft(actor=people.bob, draft=draft)
    assert not Draft.objects.exists()


def test_a_user_has_a_bounded_number_of_drafts_but_may_change_each(lab: World, monkeypatch) -> None:
    monkeypatch.setattr(drafts, "MOST", 2)
    kept(lab, "a"), kept(lab, "b")
    with pytest.raises(Refused, match="You have 2 drafts"):
        kept(lab, "c")
    kept(lab, "a", name="changed")
    save_draft(actor=lab.people.alice, kind="job", name="", request_key="a", content={})
    assert Draft.objects.count() == 3


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"kind": "house"}, "one of the kinds"),
        ({"request_key": ""}, "request key"),
        ({"content": {"yaml": "x" * drafts.MOST_BYTES}}, "at most 256 KiB"),
        ({"content": {"yaml": "a\0b"}}, "yaml must not contain zero bytes"),
        ({"content": {"fields": {"name\0": ""}}}, "zero bytes"),
    ],
)
def test_what_cannot_be_kept_is_refused(lab: World, changes: dict[str, object], why: str) -> None:
    with pytest.raises(Refused, match=why):
        save_draft(
            **{"actor": lab.people.bob, "kind": "job", "name": "", "request_key": "k", "content": {}}
            | changes
        )


def test_a_deactivated_user_keeps_no_drafts(lab: World) -> None:
    lab.people.bob.is_active = False
    with pytest.raises(NotAllowed):
        kept(lab)
    assert not Draft.objects.visible_to(lab.people.bob).exists()


def test_a_submit_with_its_key_ends_the_draft_whatever_is_submitted(lab: World) -> None:
    spec, people = JobSpec(name="later", command="train {lr}"), lab.people
    where = {"actor": people.bob, "tenant": people.astro, "cluster": lab.cluster}
    (
        kept(lab, "job"),
        kept(lab, "sweep", kind="sweep"),
        kept(lab, "pipeline", kind="pipeline"),
        kept(lab, "rest"),
    )
    job = submit_job(**where, spec=spec, request_key="job")
    parameters = Parameters("grid", grid={"lr": [1]})
    sweep = create_sweep(**where, spec=spec, parameters=parameters, rules=Rules(), request_key="sweep")
    line = Definition.parse({"name": "line", "steps": {"one": {"command": "true"}}})
    pipeline = create_pipeline(**where, definition=line, request_key="pipeline")
    assert [one.request_key for one in Draft.objects.all()] == ["rest"]
    found = [submitted_with(people.bob, key) for key in ("job", "sweep", "pipeline", "rest")]
    assert found == [job, sweep, pipeline, None]


def test_a_refused_submit_leaves_the_draft(lab: World) -> None:
    kept(lab)
    with pytest.raises(SpecError):
        submit_job(
            actor=lab.people.bob,
            tenant=lab.people.astro,
            cluster=lab.cluster,
            spec=JobSpec(name="later", command="go", generations=["K80"]),
            request_key="k",
        )
    assert Draft.objects.exists()
    assert not Job.objects.exists()


def test_a_submitted_form_that_arrives_late_is_not_kept(lab: World) -> None:
    spec = JobSpec(name="later", command="go")
    submit_job(actor=lab.people.bob, tenant=lab.people.astro, cluster=lab.cluster, spec=spec, request_key="k")
    with pytest.raises(Refused, match="submitted already"):
        kept(lab)


def test_uploaded_code_stays_as_long_as_a_draft_names_it(lab: World) -> None:
    upload = upload_code(actor=lab.people.bob, tenant=lab.people.astro, packed=packed())
    draft = kept(lab, upload=upload.digest)
    assert draft.upload == upload
    long_ago = timezone.now() - timedelta(days=300)
    CodeUpload.objects.update(uploaded_at=long_ago)
    assert retention.remove_code(after=timedelta(days=1)) == 0
    Draft.objects.update(saved_at=long_ago)
    remove_code()  # deletes the old draft first, and then its code
    assert not Draft.objects.exists()
    assert not CodeUpload.objects.exists()


def test_a_draft_keeps_no_upload_that_its_owner_may_not_use(lab: World) -> None:
    people = lab.people
    upload = upload_code(actor=people.charlie, tenant=people.bio, packed=packed())
    assert kept(lab, upload=upload.digest).upload is None
    assert kept(lab, upload="sha256:" + "0" * 64).upload is None
