"""`collectstatic`, with the storage backend of production, collects every static file and resolves every reference."""

import json

from django.contrib.staticfiles.finders import get_finders
from django.core.management import call_command


def test_every_static_file_is_found_and_every_reference_between_them_holds(tmp_path, settings):
    settings.STATIC_ROOT = tmp_path
    settings.STORAGES = {
        **settings.STORAGES,
        "staticfiles": {"BACKEND": "whitenoise.storage.CompressedManifestStaticFilesStorage"},
    }
    sources = {path for finder in get_finders() for path, _ in finder.list([])}
    # fails if a stylesheet refers by url() to a missing file
    call_command("collectstatic", interactive=False, verbosity=0)
    manifest = json.loads((tmp_path / "staticfiles.json").read_text())["paths"]
    assert sources
    assert manifest.keys() == sources
    assert all((tmp_path / hashed).exists() for hashed in manifest.values())
