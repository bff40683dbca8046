"""Members store and use secrets. Jobs get the values of the secrets that their specs name, and values are shown nowhere
else."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from django.core.management import call_command
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.core.errors import NotAllowed, Refused
from accounting.models import AuditEvent, Membership, User
from scheduling.backends.base import BackendError
from scheduling.execution.operations import describe_gang, perform_operations
from scheduling.jobs.actions import cancel_job
from scheduling.jobs.preflight import preflight
from scheduling.jobs.secrets import create_secret, delete_secret, replace_secret, secrets_of
from scheduling.models import Job, JobEvent, Operation, Secret
from scheduling.spec.job_spec import JobSpec, SpecError
from tests.scheduling.world import OneByOne, World, world

pytestmark = pytest.mark.django_db(transaction=True)
TEXT = "hf_dontTellAnybody"


@pytest.fixture
def lab() -> World:
    return world(v100=4)


def keep(
    lab: World, name: str = "hf-token", *, by: User | None = None, of: Any = None, **values: str
) -> Secret:
    return create_secret(actor=by or lab.people.bob, name=name, values=values or {"value": TEXT}, tenant=of)


def held(job: Job) -> Any:
    return secrets_of(job, JobSpec.parse(job.spec))


# --- who may what ------------------------------------------------------------------------------------------


def test_it_lies_sealed_and_is_opened_for_the_job_alone(lab: World) -> None:
    secret = keep(lab)
    assert TEXT.encode() not in bytes(secret.sealed)
    job = lab.submit(lab.people.bob, lab.people.astro, secrets={"HF_TOKEN": "hf-token"})
    assert held(job).variables == {"HF_TOKEN": TEXT}
    assert TEXT not in json.dumps(job.spec)
    assert TEXT not in repr(held(job))


def test_managers_write_a_teams_and_members_use_it(lab: World) -> None:
    people = lab.people
    with pytest.raises(NotAllowed):
        keep(lab, by=people.bob, of=people.astro)
    secret = keep(lab, by=people.alice, of=people.astro)
    assert held(lab.submit(people.bob, people.astro, secrets={"T": "hf-token"})).variables == {"T": TEXT}
    for act in (
        lambda: replace_secret(actor=people.bob, secret=secret, values={"value": "mine"}),
        lambda: delete_secret(actor=people.bob, secret=secret),
        lambda: delete_secret(actor=people.charlie, secret=secret),
    ):
        with pytest.raises(NotAllowed):
            act()
    own = keep(lab, by=people.bob, name="bobs")
    with pytest.raises(NotAllowed):  # Alice manages the team, but the secret is Bob's
        replace_secret(actor=people.alice, secret=own, values={"value": "hers"})


def test_another_teams_and_anothers_own_are_refused_as_if_they_did_not_exist(lab: World) -> None:
    people = lab.people
    keep(lab, by=people.alice, of=people.astro)
    keep(lab, by=people.alice, name="alices")
    said = set()
    for owner, tenant, name in (
        (people.charlie, people.bio, "hf-token"),
        (people.charlie, people.bio, "no-such"),
        (people.bob, people.astro, "alices"),
    ):
        for field, value in (("secrets", {"T": name}), ("secret_files", [{"name": name}])):
            with pytest.raises(SpecError) as refused:
                lab.submit(owner, tenant, **{field: value})
            said.add(refused.value.problems[field].replace(name, "it").replace(tenant.name, "the team"))
    assert said == {"neither you nor the team has a secret named it"}
    with pytest.raises(SpecError):
        preflight(
            actor=people.charlie,
            tenant=people.bio,
            cluster=lab.cluster,
            spec=JobSpec(name="x", command="x", secrets={"T": "hf-token"}),
        )


def test_a_former_member_starts_nothing_with_the_teams_secret(lab: World) -> None:
    people = lab.people
    keep(lab, by=people.alice, of=people.astro)
    job = lab.submit(people.bob, people.astro, secrets={"T": "hf-token"})
    Membership.objects.filter(user=people.bob).delete()
    with pytest.raises(BackendError, match="neither you nor Astro has a secret named hf-token"):
        held(job)


def test_a_job_cannot_be_made_to_name_anothers_by_writing_into_its_spec(lab: World) -> None:
    people = lab.people
    keep(lab, by=people.alice, of=people.astro)
    job = lab.submit(people.charlie, people.bio)
    job.spec |= {"secrets": {"T": "hf-token"}}
    with pytest.raises(BackendError, match="has a secret named hf-token"):
        held(job)


def test_a_job_keeps_to_the_secret_that_it_was_submitted_with(lab: World) -> None:
    people = lab.people
    keep(lab, by=people.alice, of=people.astro)
    job = lab.submit(people.bob, people.astro, secrets={"T": "hf-token"})
    keep(lab, by=people.bob, value="bob's own")
    assert held(job).variables == {"T": TEXT}
    later = lab.submit(people.bob, people.astro, secrets={"T": "hf-token"})
    assert held(later).variables == {"T": "bob's own"}


# --- replaced, deleted, re-encrypted -----------------------------------------------------------------------


def test_a_replaced_secret_comes_with_the_next_attempt(lab: World) -> None:
    secret = keep(lab)
    job = lab.submit(lab.people.bob, lab.people.astro, secrets={"T": "hf-token"})
    replace_secret(actor=lab.people.bob, secret=secret, values={"value": "another"})
    assert held(job).variables == {"T": "another"}


def test_it_stays_while_a_job_that_has_not_ended_names_it(lab: World) -> None:
    secret = keep(lab)
    job = lab.submit(lab.people.bob, lab.people.astro, name="needs it", secret_files=[{"name": "hf-token"}])
    with pytest.raises(Refused, match=rf"Jobs that have not ended use the secret .*: needs it \({job.pk}\)"):
        delete_secret(actor=lab.people.bob, secret=secret)
    cancel_job(actor=lab.people.bob, job=job)
    delete_secret(actor=lab.people.bob, secret=secret)
    delete_secret(actor=lab.people.bob, secret=secret)
    assert not Secret.objects.exists()
    assert Job.objects.filter(pk=job.pk).exists()


def test_reseal_encrypts_secrets_again(lab: World, settings: Any) -> None:
    old = settings.FAIRLOT_SEALING_KEYS
    keep(lab)
    job = lab.submit(lab.people.bob, lab.people.astro, secrets={"T": "hf-token"})
    settings.FAIRLOT_SEALING_KEYS = ["new-" * 10, *old]
    call_command("reseal")
    settings.FAIRLOT_SEALING_KEYS = ["new-" * 10]
    assert held(job).variables == {"T": TEXT}
    settings.FAIRLOT_SEALING_KEYS = old
    with pytest.raises(BackendError, match="FAIRLOT_SEALING_KEYS"):
        held(job)


@pytest.mark.parametrize(
    ("name", "values", "field"),
    [
        ("Not A Name", {"value": "x"}, "name"),
        ("-x", {"value": "x"}, "name"),
        ("x" * 64, {"value": "x"}, "name"),
        ("x", {}, "value"),
        ("x", {"value": ""}, "value"),
        ("x", {"a/b": "x"}, "value"),
        ("x", {"..": "x"}, "value"),
        ("x", {"hf dontTell": "x"}, "value"),
        ("x", {"a": "x", "dontTell": ""}, "value"),
        ("x", {"dontTell": "="}, "value"),  # padded base64 text, split at the first "="
        ("x", {"value": "zero\0byte"}, "value"),
        ("x", {"value": "x" * 65_537}, "value"),
        ("x", {"value": "half a \ud800 character"}, "value"),
        ("x", {f"k{number}": "x" for number in range(51)}, "value"),
    ],
)
def test_an_invalid_secret_is_refused(lab: World, name: str, values: dict[str, str], field: str) -> None:
    with pytest.raises(Refused) as refused:
        create_secret(actor=lab.people.bob, name=name, values=values)
    assert refused.value.field == field
    assert len(refused.value.message) < 200, "it does not repeat the text"
    assert "dontTell" not in refused.value.message


def test_a_name_is_taken_once_by_each(lab: World) -> None:
    people = lab.people
    keep(lab)
    with pytest.raises(Refused, match="A secret named hf-token already exists"):
        keep(lab)
    keep(lab, by=people.alice)
    keep(lab, by=people.alice, of=people.astro)
    with pytest.raises(Refused):
        keep(lab, by=people.alice, of=people.astro)


def test_keys_have_to_be_named_where_there_are_several(lab: World) -> None:
    people = lab.people
    keep(lab, name="s3", id="me", key="it")
    for said, words in (("s3", "add one, as in s3/id"), ("s3/secret", "has no key secret")):
        with pytest.raises(SpecError, match=words):
            lab.submit(people.bob, people.astro, secrets={"T": said})
    job = lab.submit(
        people.bob, people.astro, secrets={"A": "s3/id", "B": "s3/key"}, secret_files=[{"name": "s3"}]
    )
    assert held(job).variables == {"A": "me", "B": "it"}
    [folder] = held(job).folders
    assert (folder.path, folder.files) == ("/secrets/s3", {"id": "me", "key": "it"})
    replace_secret(actor=people.bob, secret=Secret.objects.get(), values={"id": "me"})
    with pytest.raises(BackendError, match="s3 has no key key"):
        held(job)


# --- never shown -------------------------------------------------------------------------------------------


def test_neither_audit_nor_events_nor_logs_nor_orders_tell_it(
    lab: World, caplog: pytest.LogCaptureFixture, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A secret's value is not stored or logged, even if a start fails with an error whose message contains `str(gang)`.

    The gang object has the values of the job's secrets.
    """
    caplog.set_level(logging.DEBUG)
    secret = keep(lab)
    replace_secret(actor=lab.people.bob, secret=secret, values={"value": TEXT, "more": TEXT})
    job = lab.submit(lab.people.bob, lab.people.astro, secrets={"T": "hf-token/value"})
    lab.fill()

    class Broken(OneByOne):
        def start(self, gang: Any) -> None:
            assert gang.secrets.variables == {"T": TEXT}
            raise ValueError(f"{gang} is too much for me")

    monkeypatch.setattr("scheduling.execution.operations.backend_for", lambda cluster: Broken())
    assert perform_operations(cluster=lab.cluster, log_limit_bytes=1000) == 1
    gang = describe_gang(lab.lease(job), JobSpec.parse(job.spec), 1000)
    told = [
        caplog.text,
        repr(gang),
        str(list(AuditEvent.objects.values())),
        str(list(JobEvent.objects.values())),
        str(list(Operation.objects.values())),
        str(list(Job.objects.values())),
    ]
    assert "too much for me" in Operation.objects.get().error
    assert "secret.replace" in told[2]
    assert [text for text in told if TEXT in text] == []


# --- the spec ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"secrets": {"T": "Hf"}}, "secrets.T", "is not a valid secret name"),
        ({"secrets": {"T": "a/../b"}}, "secrets.T", "is not a valid key of a secret"),
        ({"secrets": {"RANK": "a"}}, "secrets.RANK", "set by Fairlot itself"),
        ({"secrets": {"1T": "a"}}, "secrets.1T", "is not a variable name"),
        ({"secrets": {"T": "a"}, "variables": {"T": "b"}}, "secrets.T", "T is already one of the variables"),
        ({"secret_files": [{"name": "a", "path": "etc"}]}, "secret_files.0.path", "is not absolute"),
        (
            {"secret_files": [{"name": "a", "path": "/etc/a"}]},
            "secret_files.0.path",
            "would hide the system folder /etc",
        ),
        ({"secret_files": [{"name": "a", "path": "/x/../etc"}]}, "secret_files.0.path", ".."),
        (
            {"secret_files": [{"name": "a"}, {"name": "a"}]},
            "secret_files.1",
            "overlap; choose paths that do not contain each other",
        ),
        (
            {"secret_files": [{"name": "a", "path": "/s"}, {"name": "b", "path": "/s/b"}]},
            "secret_files.1",
            "overlap",
        ),
        ({"secret_files": [{"name": "../a"}]}, "secret_files.0.name", "is not a valid name"),
        ({"secret_files": [{"name": "a", "optional": True}]}, "secret_files.0.optional", "optional"),
    ],
)
def test_an_invalid_reference_in_a_spec_says_what_is_accepted(fields: Any, field: str, words: str) -> None:
    with pytest.raises(SpecError) as refused:
        JobSpec.parse({"name": "x", "command": "x", **fields})
    assert words in refused.value.problems[field]


@settings(max_examples=50)
@given(
    st.dictionaries(
        st.from_regex(r"[A-Z]{1,8}", fullmatch=True),
        st.from_regex(r"[a-z]{1,5}(/[a-z]{1,5})?", fullmatch=True),
    ),
    st.lists(st.from_regex(r"[a-z]{1,8}", fullmatch=True), unique=True, max_size=5),
)
def test_yaml_reads_back_to_the_same_spec(variables: dict[str, str], files: list[str]) -> None:
    spec = {
        "name": "x",
        "command": "x",
        "secrets": variables,
        "secret_files": [{"name": name} for name in files],
    }
    variables.pop("RANK", None)  # Fairlot sets RANK itself and refuses it in a spec
    made = JobSpec.parse(spec)
    assert JobSpec.from_yaml(made.to_yaml()) == made
