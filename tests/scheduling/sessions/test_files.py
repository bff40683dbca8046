"""A session that is started again gets the files of the earlier one, where these can still be had."""

from __future__ import annotations

import pytest
from django.conf import LazySettings
from django.db.models.functions import Now

from accounting.actions import set_quota
from accounting.core.errors import Refused
from accounting.models import AuditEvent, Quota
from scheduling.backends.base import End, FilesToCopy, Phase
from scheduling.execution.operations import describe_gang
from scheduling.models import Cluster, ClusterAccess, Job, JobStorage, Lease, Session
from scheduling.models.pipelines import files_are_needed
from scheduling.sessions.actions import start_session, stop_session
from scheduling.sessions.files import files_sentence, files_to_copy, why_no_copy
from scheduling.spec.job_spec import JobSpec
from scheduling.storage import delete_files
from tests.make import membership
from tests.scheduling.sessions.test_sessions import begin, lab, run  # noqa: F401 - a fixture
from tests.scheduling.world import World

pytestmark = pytest.mark.django_db


def ended(lab: World) -> Session:  # noqa: F811
    session = run(lab)
    stop_session(actor=lab.people.bob, session=session)
    lab.carry_out()
    session.job.refresh_from_db()
    assert session.job.has_ended
    return session


def measured(session: Session, **parts: int) -> None:
    size = sum(parts.values())
    JobStorage.objects.update_or_create(job=session.job, defaults={"size": size, "parts": parts})


def again(lab: World, earlier: Session, **fields: object) -> Session:  # noqa: F811
    usual = {"actor": lab.people.bob, "tenant": lab.people.astro, "cluster": lab.cluster}
    spec = JobSpec(name="notes", command="serve", port=8000)
    return start_session(**(usual | {"spec": spec, "files_from": earlier} | fields))  # type: ignore[arg-type]


def test_the_gang_of_a_session_started_again_copies_the_files_of_the_earlier_one(lab: World) -> None:  # noqa: F811
    earlier = ended(lab)
    session = again(lab, earlier, request_key="once")
    assert again(lab, earlier, request_key="once") == session, "the form was sent twice"
    event = AuditEvent.objects.get(verb="session.start", target_id=str(session.pk))
    assert event.after["files_from"] == earlier.pk
    lab.fill()
    lease = Lease.objects.select_related("job__cluster").get(job=session.job)
    gang = describe_gang(lease, JobSpec.parse(session.job.spec), 1000)
    assert gang.copies == FilesToCopy(earlier.pk, 10 * 2**30, with_home=True)
    of_alice = again(lab, earlier, actor=lab.people.alice)
    assert files_to_copy(of_alice.job) == FilesToCopy(earlier.pk, 10 * 2**30, with_home=False)
    assert files_to_copy(begin(lab).job) is None
    assert files_to_copy(lab.submit(lab.people.bob, lab.people.astro)) is None


def test_a_session_that_never_started_passes_on_the_files_that_it_was_to_get(lab: World) -> None:  # noqa: F811
    earlier = ended(lab)
    never = again(lab, earlier)
    stop_session(actor=lab.people.bob, session=never)
    never.job.refresh_from_db()
    assert again(lab, never).files_from == earlier.job


def test_files_are_kept_while_a_session_may_still_copy_them(lab: World) -> None:  # noqa: F811
    earlier = ended(lab)
    session = again(lab, earlier)
    assert list(Job.objects.filter(files_are_needed())) == [earlier.job]
    with pytest.raises(Refused, match="A pipeline or session that has not ended"):
        delete_files(actor=lab.people.bob, job=earlier.job)
    stop_session(actor=lab.people.bob, session=session)
    assert not Job.objects.filter(files_are_needed()).exists()
    delete_files(actor=lab.people.bob, job=earlier.job)
    with pytest.raises(Refused, match="have been deleted"):
        again(lab, earlier)


def test_what_cannot_be_copied_is_refused_with_the_reason(lab: World, settings: LazySettings) -> None:  # noqa: F811
    running = run(lab)
    assert "has not ended" in why_no_copy(running)
    never = begin(lab)
    stop_session(actor=lab.people.bob, session=never)
    never.job.refresh_from_db()
    assert "never started" in why_no_copy(never)
    earlier = ended(lab)
    assert why_no_copy(earlier) == ""
    settings.FAIRLOT_SESSION_FILES_MIB = 1
    measured(earlier, work=2**20, home=2**19, logs=10)
    with pytest.raises(Refused, match=r"take 1\.5.MiB, and at most 1\.0.MiB are copied") as caught:
        again(lab, earlier)
    assert caught.value.field == "files_from"
    measured(earlier, work=2**20, logs=2**20)
    assert why_no_copy(earlier) == "", "logs do not count"
    with pytest.raises(Refused, match="no session"):
        again(lab, earlier, actor=lab.people.charlie, tenant=lab.people.bio)
    membership(lab.people.bob, lab.people.bio)
    with pytest.raises(Refused, match="same team and cluster"):
        again(lab, earlier, tenant=lab.people.bio)
    Job.objects.filter(pk=earlier.pk).update(files_removed_at=Now())
    earlier.job.refresh_from_db()
    assert "have been deleted" in why_no_copy(earlier)
    assert Session.objects.filter(files_from__isnull=False).count() == 0


def test_a_copy_does_not_exceed_the_teams_limit_on_files(lab: World) -> None:  # noqa: F811
    earlier = ended(lab)
    measured(earlier, work=2**30)
    set_quota(
        actor=lab.people.ada,
        tenant=lab.people.astro,
        kind=Quota.Kind.STORAGE,
        limit=2,
        at_limit=Quota.AtLimit.BLOCK,
    )
    again(lab, earlier)
    measured(earlier, work=2**30 + 1)
    with pytest.raises(Refused, match="would exceed the limit on the space"):
        again(lab, earlier)
    assert again(lab, earlier, files_from=None).files_from_id is None


def test_a_cluster_keeps_checkpoints_in_its_claim_and_nothing_without_one(
    lab: World,  # noqa: F811
    settings: LazySettings,
) -> None:
    earlier = ended(lab)
    settings.FAIRLOT_KEEP_JOB_FILES_DAYS = 1
    assert "kept for 1 day after it stops" in files_sentence(earlier.job)
    settings.FAIRLOT_KEEP_JOB_FILES_DAYS = 0
    assert "kept after it stops" in files_sentence(earlier.job)
    Cluster.objects.update(backend=Cluster.Backend.KUBERNETES)
    earlier = Session.objects.select_related("job__cluster").get(pk=earlier.pk)
    assert "are lost" in files_sentence(earlier.job)
    assert "no claim for checkpoints" in why_no_copy(earlier)
    ClusterAccess.objects.create(
        cluster=earlier.job.cluster, sealed_kubeconfig=b"", server="s", checkpoint_claim="kept"
    )
    assert "Only files in FAIRLOT_CHECKPOINT_DIR" in files_sentence(earlier.job)
    Job.objects.filter(pk=earlier.pk).update(files_removed_at=Now())
    assert why_no_copy(earlier) == "", "there only logs are deleted"


def test_a_session_that_failed_keeps_its_files_too(lab: World) -> None:  # noqa: F811
    session = run(lab)
    lab.see(lab.lease(session.job), Phase.ENDED, end=End.FAILED, exit_code=3, ended_age=0.0)
    session.job.refresh_from_db()
    assert session.job.has_ended
    assert why_no_copy(session) == ""
