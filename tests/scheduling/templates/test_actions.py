"""Managers publish templates to their team, admins to all teams; versions stay; jobs record where they come from."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from accounting.core.errors import NotAllowed, Refused
from accounting.models import AuditEvent, Tenant
from scheduling import retention
from scheduling.jobs.code import upload_code
from scheduling.jobs.drafts import save_draft
from scheduling.models import CodeUpload, Draft, Job, JobTemplate, TemplateUse, TemplateVersion
from scheduling.models.templates import version_in_sight
from scheduling.spec.job_spec import JobSpec, SpecError
from scheduling.spec.templates import read_values
from scheduling.templates import actions
from scheduling.templates.actions import (
    filled,
    parameters_of,
    publish_template,
    publish_version,
    submit_from_template,
    withdraw_template,
)
from tests.scheduling.jobs.test_code import packed
from tests.scheduling.world import World, world

SPEC = {"name": "train {lr}", "command": "train --lr {lr}", "gpus_per_worker": 2, "expected_hours": 1.5}
PARAMETERS = [{"name": "lr", "type": "number", "min": 0, "max": 1, "default": 0.1}]


@pytest.fixture
def lab(db: None) -> World:
    return world(v100=4)


def publish(lab: World, **changes: Any) -> TemplateVersion:
    usual = {
        "actor": lab.people.alice, "tenant": lab.people.astro, "name": "Baseline", "description": "Trains it.",
        "spec": SPEC, "parameters": PARAMETERS,
    }  # fmt: skip
    return publish_template(**usual | changes)


def submit(lab: World, version: TemplateVersion, **changes: Any) -> Job:
    values = read_values(parameters_of(version), {"lr": "0.5"})
    usual = {
        "actor": lab.people.bob, "tenant": lab.people.astro, "cluster": lab.cluster, "version": version,
        "values": values, "spec": filled(version, values),
    }  # fmt: skip
    return submit_from_template(**usual | changes)


def test_a_template_says_what_it_costs_and_is_audited(lab: World) -> None:
    template = publish(lab, description="  Trains\nit. ").template
    assert (template.gpus, template.expected_hours, template.description) == (2, 1.5, "Trains it.")
    event = AuditEvent.objects.get(verb="template.publish")
    assert (event.actor, event.tenant, event.after) == (
        lab.people.alice, lab.people.astro, {"version": 1, "parameters": ["lr"]},
    )  # fmt: skip


def test_managers_publish_for_their_team_and_admins_for_everybody(lab: World) -> None:
    people = lab.people
    for actor in (people.bob, people.charlie, people.olga):
        with pytest.raises(NotAllowed):
            publish(lab, actor=actor)
    for actor in (people.bob, people.alice, people.olga):
        with pytest.raises(NotAllowed):
            publish(lab, actor=actor, tenant=None)
    publish(lab, actor=people.ada, tenant=None)
    publish(lab, actor=people.ada)
    publish(lab, actor=people.ada, tenant=people.bio)
    seen = {
        name: list(
            JobTemplate.objects.visible_to(getattr(people, name)).values_list("tenant__slug", flat=True)
        )
        for name in ("bob", "charlie", "olga")
    }
    assert {name: set(slugs) for name, slugs in seen.items()} == {
        "bob": {None, "astro"}, "charlie": {None, "bio"}, "olga": {None, "astro", "bio"},
    }  # fmt: skip
    people.bob.is_active = False
    assert not JobTemplate.objects.visible_to(people.bob).exists()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"name": " "}, "1 to 80"), ({"name": "a\u202eb"}, "The name"), ({"description": ""}, "A description has"),
        ({"description": "a\u202eb"}, "The description"),
    ],
)  # fmt: skip
def test_names_and_descriptions_are_for_people(lab: World, changes: dict[str, str], why: str) -> None:
    with pytest.raises(Refused, match=why):
        publish(lab, **changes)


def test_a_name_is_free_again_once_its_template_was_withdrawn(lab: World) -> None:
    first = publish(lab).template
    with pytest.raises(Refused, match="already"):
        publish(lab)
    publish(lab, actor=lab.people.ada, tenant=None)
    with pytest.raises(Refused, match="already"):
        publish(lab, actor=lab.people.ada, tenant=None)
    with pytest.raises(NotAllowed):
        withdraw_template(actor=lab.people.bob, template=first)
    withdraw_template(actor=lab.people.alice, template=first)
    withdraw_template(actor=lab.people.alice, template=first)
    assert AuditEvent.objects.filter(verb="template.withdraw").count() == 1
    assert publish(lab).template.pk != first.pk
    with pytest.raises(Refused, match="was withdrawn"):
        publish_version(
            actor=lab.people.alice, template=first, description="x", spec=SPEC, parameters=PARAMETERS
        )


def test_versions_stay_as_they_were_published(lab: World, monkeypatch) -> None:
    first = publish(lab)
    later = {"name": "later", "command": "train --lr {lr}", "workers": 3}
    content = {"description": "Faster.", "spec": later, "parameters": PARAMETERS}
    with pytest.raises(NotAllowed):
        publish_version(actor=lab.people.bob, template=first.template, **content)
    second = publish_version(actor=lab.people.alice, template=first.template, **content)
    first.refresh_from_db()
    assert (first.number, first.spec, second.number) == (1, SPEC, 2)
    template = JobTemplate.objects.get()
    assert (template.latest, template.description, template.gpus) == (2, "Faster.", 3)
    monkeypatch.setattr(actions, "MOST_VERSIONS", 2)
    with pytest.raises(Refused, match="at most 2 versions"):
        publish_version(actor=lab.people.alice, template=template, **content)


def test_a_team_offers_a_bounded_number_of_templates(lab: World, monkeypatch) -> None:
    monkeypatch.setattr(actions, "MOST", 1)
    publish(lab)
    with pytest.raises(Refused, match="Withdraw one first"):
        publish(lab, name="Other")
    publish(lab, actor=lab.people.ada, tenant=lab.people.bio)


def test_an_archived_team_publishes_nothing(lab: World) -> None:
    Tenant.objects.filter(pk=lab.people.astro.pk).update(archived_at=timezone.now())
    lab.people.astro.refresh_from_db()
    with pytest.raises(Refused, match="archived"):
        publish(lab, actor=lab.people.ada)


def test_a_job_records_the_version_and_the_values_once(lab: World) -> None:
    version = publish(lab)
    save_draft(actor=lab.people.bob, kind="job", name="", request_key="k", content={})
    job = submit(lab, version, request_key="k")
    assert submit(lab, version, request_key="k") == job
    use = TemplateUse.objects.get()
    assert (use.job, use.version, use.values) == (job, version, {"lr": 0.5})
    assert (job.name, job.spec["command"]) == ("train 0.5", "train --lr 0.5")
    assert not Draft.objects.exists()
    assert version_in_sight(lab.people.bob, job) == version
    assert version_in_sight(lab.people.charlie, job) is None
    assert version_in_sight(lab.people.bob, lab.submit(lab.people.bob, lab.people.astro)) is None


def test_a_withdrawn_template_submits_nothing(lab: World) -> None:
    version = publish(lab)
    withdraw_template(actor=lab.people.alice, template=version.template)
    with pytest.raises(Refused, match="withdrawn"):
        submit(lab, version)
    assert not Job.objects.exists()


def test_values_that_do_not_fit_the_specification_are_refused(lab: World) -> None:
    version = publish(
        lab,
        spec={"name": "a", "command": "go", "workers": "{n}"},
        parameters=[{"name": "n", "type": "number"}],
    )
    with pytest.raises(SpecError) as caught:
        filled(version, {"n": 0.5})
    assert "workers" in caught.value.problems


def test_code_of_a_template_stays_while_it_is_offered_and_belongs_to_its_team(lab: World) -> None:
    people = lab.people
    upload = upload_code(actor=people.alice, tenant=people.astro, packed=packed())
    spec = SPEC | {"code": {"upload": upload.digest}}
    with pytest.raises(SpecError, match="belongs to one team"):
        publish(lab, actor=people.ada, tenant=None, spec=spec)
    with pytest.raises(SpecError, match="no such upload"):
        publish(lab, actor=people.ada, tenant=people.bio, spec=spec)
    version = publish(lab, spec=spec)
    assert version.upload == upload
    assert submit(lab, version).code.upload == upload
    Job.objects.update(files_removed_at=timezone.now())
    CodeUpload.objects.update(uploaded_at=timezone.now() - timedelta(days=90))
    assert retention.remove_code(after=timedelta(days=1)) == 0
    withdraw_template(actor=people.alice, template=version.template)
    assert retention.remove_code(after=timedelta(days=1)) == 1
    version.refresh_from_db()
    assert version.upload is None


def test_a_spec_without_parameters_is_a_template_too(lab: World) -> None:
    version = publish(lab, spec={"name": "plain", "command": "go"}, parameters=[])
    assert filled(version, {}) == JobSpec(name="plain", command="go")
