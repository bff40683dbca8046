"""Bring database and static files up to the code, in one process, as Django's start takes a second.

python -m embedded.prepare [--demo PASSWORDS_FILE]
"""

import argparse
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--demo", type=Path, metavar="PASSWORDS_FILE", help="load the demo, too")
    options = parser.parse_args()

    import django  # noqa: PLC0415 - nothing else in this package may need Django
    from django.core.management import call_command  # noqa: PLC0415

    django.setup()
    call_command("migrate", interactive=False, verbosity=1)
    call_command("collectstatic", interactive=False, verbosity=0)
    if options.demo is not None:
        call_command("load_demo", "--passwords-file", str(options.demo))
        options.demo.chmod(0o600)


if __name__ == "__main__":
    main()
