"""Every event code has a sentence, and the database accepts no other code."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, transaction

from portal.wording import LEASE_ENDS
from scheduling.core.event_texts import TEXTS, text_of
from scheduling.models import Job, JobEvent, Lease
from scheduling.models.event_codes import EventCode, LeaseEnd
from tests.scheduling.world import world


def test_every_code_has_a_sentence_and_every_end_a_label() -> None:
    assert TEXTS.keys() == set(EventCode)
    assert LEASE_ENDS.keys() == {"", *LeaseEnd}


def test_what_an_earlier_release_wrote_stays_as_it_is() -> None:
    assert text_of(JobEvent(text="Given 1 V100 on k1 (GPU 0)")) == "Given 1 V100 on k1 (GPU 0)"


@pytest.mark.django_db(transaction=True)
def test_the_database_refuses_a_code_that_nobody_knows() -> None:
    lab = world()
    job = lab.submit(lab.people.bob, lab.people.astro)
    lab.fill()
    for rows, field in (
        (job.events.all(), "code"),
        (Job.objects.all(), "end_code"),
        (Job.objects.all(), "end_reason"),
        (Lease.objects.all(), "end_reason"),
        (Lease.objects.all(), "stop_cause"),
    ):
        with pytest.raises(IntegrityError), transaction.atomic():
            rows.update(**{field: "because"})
