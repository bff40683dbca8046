"""Migrates the database, collects static files and optionally loads the demo.

One process does all of this, because each start of Django would take about a second.

python -m embedded.prepare [--demo PASSWORDS_FILE]
"""

import argparse
import fcntl
import gc
from pathlib import Path

from embedded.environment import ROOT, fingerprint, static_files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--demo",
        type=Path,
        metavar="PASSWORDS_FILE",
        help="also load the demo data, and store the passwords of its users in this file",
    )
    options = parser.parse_args()

    import django  # noqa: PLC0415 - nothing else in this package may need Django
    from django.core.management import call_command  # noqa: PLC0415

    django.setup()
    # Migrations create thousands of classes that stay alive, so frequent garbage collection would only cost time.
    gc.set_threshold(100_000, 20, 20)
    call_command("migrate", interactive=False, verbosity=1)
    collect_static_files()
    if options.demo is not None:
        call_command("load_demo", "--passwords-file", str(options.demo))
        options.demo.chmod(0o600)


def collect_static_files() -> None:
    """Collects static files unless they are up to date.

    Holds a lock, because several portals of one checkout may start at the same time.
    """
    from django.conf import settings  # noqa: PLC0415 - as in main
    from django.core.management import call_command  # noqa: PLC0415

    folder = Path(settings.STATIC_ROOT)
    folder.mkdir(parents=True, exist_ok=True)
    wanted = fingerprint([ROOT / "uv.lock", *static_files()])
    stamp, manifest = folder / ".collected-from", folder / "staticfiles.json"
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if manifest.exists() and stamp.exists() and stamp.read_text() == wanted:
            return
        stamp.unlink(missing_ok=True)
        call_command("collectstatic", interactive=False, verbosity=0)
        stamp.write_text(wanted)


if __name__ == "__main__":
    main()
