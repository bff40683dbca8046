"""Runs one scenario in a separate process, with the settings of a running portal; see scenarios.py."""

import json
import sys

import django

django.setup()

from tests.proof.scenarios import SCENARIOS  # noqa: E402 - models need Django's set-up

sys.stdout.write(json.dumps(SCENARIOS[sys.argv[1]](**json.loads(sys.argv[2]))) + "\n")
