"""Encrypts all stored secrets again with the newest key, after an operator has added a key."""

from __future__ import annotations

from dataclasses import dataclass

from django.db import models, transaction

from accounting.access import audit
from accounting.core.encryption import SealError, reseal
from scheduling.models import ClusterAccess, Secret

# All models and fields with encrypted contents.
SEALED: tuple[tuple[type[models.Model], str], ...] = (
    (ClusterAccess, "sealed_kubeconfig"),
    (Secret, "sealed"),
)


@dataclass(frozen=True, slots=True)
class Lost:
    """A stored secret that cannot be decrypted with any of the configured keys."""

    name: str
    why: str


def reseal_all() -> tuple[int, list[Lost]]:
    """Encrypts all stored secrets again with the newest key, each in its own transaction.

    Returns a pair: the number of secrets that were encrypted again, and the secrets that no key decrypts. The latter
    stay unchanged.
    """
    done, lost = 0, []
    for model, field in SEALED:
        for pk in model._default_manager.order_by("pk").values_list("pk", flat=True):
            try:
                done += _reseal(model, field, pk)
            except SealError as error:
                row = model._default_manager.get(pk=pk)
                lost.append(Lost(f"{model._meta.verbose_name} {row}", str(error)))
    return done, lost


@transaction.atomic(durable=True)
def _reseal(model: type[models.Model], field: str, pk: int) -> int:
    """Encrypts one field of one row again with the newest key. Returns 1, or 0 if the row no longer exists.

    Raises SealError if no key decrypts the field.
    """
    row = model._default_manager.select_for_update().filter(pk=pk).first()
    if row is None:
        return 0
    setattr(row, field, reseal(bytes(getattr(row, field))))
    row.save(update_fields=[field])
    audit.record(actor=None, verb="secret.reseal", target=row)
    return 1
