"""Fairlot encrypts secrets in the database, rotates keys, and reports a missing key with a clear error."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from accounting.core.encryption import SealError, reseal, seal, unseal
from accounting.models import AuditEvent
from scheduling.models import Cluster, ClusterAccess

OLD, NEW, OTHER = ("old-" * 10, "new-" * 10, "other-" * 8)
SECRET = b"a kubeconfig"


def test_encrypted_values_are_unreadable_and_open_with_the_key(settings: Any) -> None:
    settings.FAIRLOT_SEALING_KEYS = [OLD]
    sealed = seal(SECRET)
    assert SECRET not in sealed
    assert seal(SECRET) != sealed
    assert unseal(sealed) == SECRET


def test_a_changed_byte_is_noticed(settings: Any) -> None:
    settings.FAIRLOT_SEALING_KEYS = [OLD]
    sealed = bytearray(seal(SECRET))
    sealed[20] = sealed[20] % 64 + 48
    with pytest.raises(SealError):
        unseal(bytes(sealed))


def test_the_newest_key_seals_and_older_ones_open(settings: Any) -> None:
    settings.FAIRLOT_SEALING_KEYS = [OLD]
    sealed = seal(SECRET)
    settings.FAIRLOT_SEALING_KEYS = [NEW, OLD]
    assert unseal(sealed) == SECRET
    again = reseal(sealed)
    settings.FAIRLOT_SEALING_KEYS = [NEW]
    assert unseal(again) == SECRET
    for refused in (unseal, reseal):
        with pytest.raises(SealError, match="not among FAIRLOT_SEALING_KEYS"):
            refused(sealed)


def test_without_a_key_nothing_can_be_sealed(settings: Any) -> None:
    settings.FAIRLOT_SEALING_KEYS = []
    with pytest.raises(SealError, match="set FAIRLOT_SEALING_KEYS"):
        seal(SECRET)


def attached(name: str) -> ClusterAccess:
    cluster = Cluster.objects.create(name=name, backend=Cluster.Backend.KUBERNETES)
    return ClusterAccess.objects.create(
        cluster=cluster, sealed_kubeconfig=seal(name.encode()), server=f"https://{name}:6443"
    )


def opened(access: ClusterAccess) -> str:
    access.refresh_from_db()
    return unseal(bytes(access.sealed_kubeconfig)).decode()


@pytest.mark.django_db(transaction=True)
def test_reseal_makes_the_old_key_superfluous(settings: Any) -> None:
    settings.FAIRLOT_SEALING_KEYS = [OLD]
    east, west = attached("east"), attached("west")
    settings.FAIRLOT_SEALING_KEYS = [NEW, OLD]
    said = StringIO()
    call_command("reseal", stdout=said)
    assert said.getvalue() == "Secrets encrypted with the newest key: 2.\n"
    settings.FAIRLOT_SEALING_KEYS = [NEW]
    assert [opened(east), opened(west)] == ["east", "west"]
    assert AuditEvent.objects.filter(verb="secret.reseal").count() == 2


@pytest.mark.django_db(transaction=True)
def test_a_secret_that_no_key_opens_is_named_and_blocks_no_other(settings: Any) -> None:
    settings.FAIRLOT_SEALING_KEYS = [OTHER]
    lost = attached("lost")
    kept = bytes(lost.sealed_kubeconfig)
    settings.FAIRLOT_SEALING_KEYS = [OLD]
    east = attached("east")
    settings.FAIRLOT_SEALING_KEYS = [NEW, OLD]
    with pytest.raises(CommandError, match=r"https://lost:6443.*put that key back"):
        call_command("reseal", stdout=StringIO())
    settings.FAIRLOT_SEALING_KEYS = [NEW]
    assert opened(east) == "east"
    lost.refresh_from_db()
    assert bytes(lost.sealed_kubeconfig) == kept
