"""Measures Fairlot's central claim, GPU time in proportion to tickets, with real processes and services.

The figures are stored in artifacts/fairness.json and artifacts/trading.json.
"""

import json
import sys

import pytest

from tests.proof.portal import ROOT, RunningPortal

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("figures")]

# Slightly less than a whole number of seconds, because rounds start on a tick of one second: quanta then last exactly
# that many seconds.
QUANTUM, SHORT_QUANTUM = 2.9, 1.9
# The smallest team gets a little more than one of eight GPUs. On each of two generations it may begin one or two quanta
# ahead and end one or two quanta behind: in total four to eight GPU-quanta, less than 5 % of its 180. (With 90
# GPU-quanta the deviation was 5.6 % once, on a machine where rounds came late.)
QUANTA = 160


def test_gpu_time_in_the_ledger_follows_the_tickets(portal: RunningPortal) -> None:
    figures = portal.scenario("fairness", tickets=[100, 200, 400], quanta=QUANTA, quantum=SHORT_QUANTUM)
    keep("fairness", figures)
    assert figures["gpus"] == 8
    assert len(figures["generations"]) == 2
    assert figures["quanta"] >= QUANTA
    for team in figures["teams"]:
        assert team["ratio"] == pytest.approx(1.0, abs=0.05), figures


def test_with_trading_both_teams_make_more_steps(portal: RunningPortal) -> None:
    figures = portal.scenario("trading", quanta=20, quantum=QUANTUM, sensitivities=["0.13", "1.0"])
    keep("trading", figures)
    for team in figures["teams"]:
        assert team["gain"] > 1.0, figures


def keep(name: str, figures: dict) -> None:
    """Prints the figures and stores them as artifacts/NAME.json."""
    text = json.dumps(figures, indent=2)
    sys.stdout.write(text)
    folder = ROOT / "artifacts"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(text + "\n")
