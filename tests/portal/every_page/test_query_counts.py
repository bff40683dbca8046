"""Each page makes no more database queries than tests/query_counts.py allows."""

from __future__ import annotations

from collections.abc import Callable

from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from accounting.models import User
from tests.portal.scene import Scene
from tests.query_counts import PAGES, fits


def test_each_page_takes_as_many_queries_as_it_should(
    scene: Scene, browser_of: Callable[[User], Client]
) -> None:
    ada = browser_of(scene.people.ada)
    found = {}
    for page in PAGES:
        url = reverse(page)
        ada.get(url)  # some values are read only once per process
        with CaptureQueriesContext(connection) as asked:
            assert ada.get(url).status_code == 200, page
        found[page] = len(asked)
    assert {page: count for page, count in found.items() if not fits(count, PAGES[page])} == {}
