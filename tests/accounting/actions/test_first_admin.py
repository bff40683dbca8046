"""Tests that Django's `createsuperuser` creates the first admin of a new installation."""

from io import StringIO

import pytest
from django.core.management import call_command

from accounting.models import User

pytestmark = pytest.mark.django_db


def test_createsuperuser_makes_an_admin_of_the_portal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DJANGO_SUPERUSER_PASSWORD", "a long and quiet afternoon")
    call_command("createsuperuser", "--noinput", username="root", email="root@example.org", stdout=StringIO())
    user = User.objects.get()
    assert user.is_admin
    assert user.check_password("a long and quiet afternoon")
