"""The form's lists of volumes and secrets stand for the same job as the lines in the specification."""

from __future__ import annotations

from typing import Any

import pytest
from django.http import QueryDict
from django.test import Client
from django.urls import reverse
from hypothesis import given
from hypothesis import strategies as st

from portal.submit.data import Mountable, posted_lines, references, secret_list, secret_rows, volume_list
from portal.submit.fields import Fields
from scheduling.jobs.secrets import create_secret
from scheduling.models import Job
from scheduling.spec.job_spec import JobSpec
from tests.portal.scene import Scene
from tests.portal.submit.test_submit import posted

SECRETS = [("hf", ["value"]), ("s3", ["id", "key"])]


def as_posted(fields: Fields) -> QueryDict:
    """Returns what a browser posts from the lists that show these fields."""
    post = QueryDict(mutable=True)
    post["data_lists"] = "1"
    lists: tuple[tuple[str, list[Mountable]], ...] = (
        ("volume", volume_list(fields.volumes, [])), ("secret_file", secret_list(fields.secret_files, SECRETS)),
    )  # fmt: skip
    for kind, listed in lists:
        post.setlist(f"use_{kind}", [one.name for one in listed if one.is_used])
        for one in listed:
            post[f"{kind}_path.{one.name}"] = one.path
    rows = secret_rows(fields.secrets)
    post.setlist("secret_variable", [variable for variable, _ in rows])
    post.setlist("secret_reference", [reference for _, reference in rows])
    return post


@given(
    st.dictionaries(st.sampled_from("ABC"), st.sampled_from(["hf", "s3/id", "gone/x"])),
    st.lists(st.sampled_from(["hf", "s3", "gone"]), unique=True),
    st.lists(st.sampled_from(["sky", "sea"]), unique=True),
    st.booleans(),
)
def test_lists_and_lines_are_the_same_job(
    secrets: dict[str, str], files: list[str], volumes: list[str], has_paths: bool
) -> None:
    def mounts(names: list[str]) -> list[dict[str, str]]:
        return [{"name": name} | ({"path": f"/opt/{name}"} if has_paths else {}) for name in names]

    given_: dict[str, Any] = {"secrets": secrets, "secret_files": mounts(files)}
    if not (has_paths and set(files) & set(volumes)):
        given_["volumes"] = mounts(volumes)
    spec = JobSpec.parse({"name": "x", "command": "x"} | given_)
    read = posted_lines(as_posted(Fields.from_spec(spec)))
    again = Fields(name="x", command="x", **read).to_spec()
    assert again.secrets == spec.secrets
    for field in ("secret_files", "volumes"):
        assert sorted(getattr(again, field), key=str) == sorted(getattr(spec, field), key=str)


def test_a_form_without_lists_keeps_its_lines() -> None:
    assert posted_lines(QueryDict("volumes=sky")) == {}
    assert Fields.from_post(QueryDict("volumes=sky&data_lists=1")).volumes == ""


def test_a_variable_takes_a_secret_with_one_text_or_a_key() -> None:
    assert references(SECRETS) == ["hf", "s3/id", "s3/key"]


@pytest.mark.usefixtures("transactional_db")
def test_the_page_offers_secrets_and_submits_what_was_chosen(scene: Scene, browser_of: Any) -> None:
    bob: Client = browser_of(scene.people.bob)
    create_secret(actor=scene.people.bob, name="mine", values={"id": "1", "key": "2"})
    page = bob.get(reverse("submit")).content.decode()
    assert "<option>mine/key</option>" in page
    assert 'name="use_secret_file" value="mine"' in page
    for legend in ("Code", "Run", "Resources", "Data"):
        assert f"<legend>{legend}</legend>" in page
    lists = {
        "data_lists": "1", "secret_variable": ["TOKEN", ""], "secret_reference": ["mine/key", ""],
        "use_secret_file": ["mine"], "secret_file_path.mine": "",
    }  # fmt: skip
    lines = {"secrets": "TOKEN=mine/key", "secret_files": "mine"}
    answer = bob.post(reverse("submit"), posted(**lines) | lists)
    assert answer.status_code == 302, answer.content.decode()
    spec = Job.objects.latest("pk").spec
    assert spec["secrets"] == {"TOKEN": "mine/key"}
    assert spec["secret_files"] == [{"name": "mine", "path": ""}]
