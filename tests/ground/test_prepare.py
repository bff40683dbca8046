"""Several portals that start from one checkout at the same time collect the static files only once."""

import subprocess
import sys

import pytest

from tests.ground.settings_read import ROOT
from tests.waiting import PATIENCE

COLLECT = """
import sys, django
from django.conf import settings
django.setup()
settings.STATIC_ROOT = sys.argv[1]
from embedded.prepare import collect_static_files
collect_static_files()
"""


@pytest.mark.slow
def test_static_files_are_collected_once_however_many_ask_at_once(tmp_path):
    folder = tmp_path / "static"
    asking = [
        subprocess.Popen([sys.executable, "-c", COLLECT, folder], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    said = [process.communicate(timeout=PATIENCE)[1] for process in asking]
    assert [process.returncode for process in asking] == [0] * 4, said
    made = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    assert folder / "staticfiles.json" in made
    subprocess.run([sys.executable, "-c", COLLECT, folder], cwd=ROOT, check=True, timeout=PATIENCE)
    assert {path for path, mtime in made.items() if path.stat().st_mtime_ns != mtime} <= {folder / ".lock"}
