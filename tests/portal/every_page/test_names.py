"""Every list sorts names alphabetically and ignores case."""

import re

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from accounting.core.name_order import name_key
from accounting.models import Generation, Tenant
from scheduling.models import Cluster
from tests.portal.every_page.test_every_url import walk
from tests.portal.scene import Scene, with_a_session

SELECT = re.compile(r'<select[^>]* name="(\w+)"[^>]*>(.*?)</select>', re.DOTALL)
OPTION = re.compile(r"<option(?! value=\"\")[^>]*>([^<(]+)")
OF_NAMES = {"team", "tenant", "cluster", "generation"}


@pytest.fixture
def scene(scene: Scene) -> Scene:
    return with_a_session(scene)


def test_every_choice_of_names_is_in_their_order(scene: Scene, browser_of) -> None:
    for name in ("alpha", "beta", "Zeta", "yota"):
        Tenant.objects.create(name=name, slug=name.lower(), path=f"{name}/", tickets=1)
        Generation.objects.create(name=name)
        Cluster.objects.create(name=name)
        get_user_model().objects.create(username=name)
    looked_at = set()
    for url, html in pages(scene, browser_of(scene.people.ada)):
        for field, options in SELECT.findall(html):
            names = [text.strip() for text in OPTION.findall(options)]
            if field in OF_NAMES and len(names) > 1:
                looked_at.add(field)
                assert names == sorted(names, key=name_key), (url, field)
    assert looked_at >= {"team", "cluster", "generation"}
    teams = re.findall(
        r'href="/admin/tenants/\w+/">(\w+)<', get(browser_of(scene.people.ada), "/admin/tenants/")
    )
    assert teams == ["alpha", "beta", "Uni", "Astro", "Bio", "yota", "Zeta"]
    users = re.findall(
        r'href="/admin/users/\d+/">([\w]+)<', get(browser_of(scene.people.ada), "/admin/users/")
    )
    assert users == sorted(users, key=name_key)
    assert "Zeta" in users


def pages(scene: Scene, client: Client):
    for _, url in walk(scene):
        if not url.startswith(("/api/", "/live")):
            yield url, get(client, url)


def get(client: Client, url: str) -> str:
    answer = client.get(url)
    is_page = answer.status_code == 200 and not answer.streaming and "html" in answer["Content-Type"]
    return answer.content.decode() if is_page else ""
