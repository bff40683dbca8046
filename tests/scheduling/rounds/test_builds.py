"""A round records the build of its policy, which is a hash of the policy's source code.

Two builds of a released version decide the same. Builds of an unreleased version may decide differently.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from fairshare.codec import decode_decision, encode
from fairshare.model import Decision
from fairshare.policies import all_versions, policy_type
from scheduling.models import Round, RoundRecord
from scheduling.rounds import builds
from scheduling.rounds.builds import FROZEN, build_of, digest, sources
from tests.scheduling.world import world

# --- builds --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", FROZEN)
def test_a_version_that_was_released_never_changes(version: tuple[str, int]) -> None:
    module = policy_type(*version).__module__
    package = module.rpartition(".")[0] + "."
    own = {name: text for name, text in sources(module).items() if name.startswith(package)}
    assert digest(own) == FROZEN[version], "change its successor instead"


def test_a_build_has_all_that_its_policy_imports_and_nothing_of_others() -> None:
    of_market = sources(policy_type("market").__module__)
    assert {
        "fairshare.policies.gandiva_fair.turns",
        "fairshare.quotas",
        "fairshare.model",
    } <= of_market.keys()
    assert not [name for name in of_market if "gandiva_fair_1" in name or ".check" in name]
    assert len({build_of(*version) for version in all_versions()}) == len(all_versions())


def test_a_build_is_the_same_however_lines_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builds, "ROOT", tmp_path)
    (tmp_path / "fairshare").mkdir()
    found = []
    for ending, value in (("\n", 1), ("\r\n", 1), ("\n", 2)):
        (tmp_path / "policy.py").write_text("from fairshare.used import X\nX\n", newline=ending)
        (tmp_path / "fairshare" / "used.py").write_text(f"\nX = {value}\n", newline=ending)
        found.append(digest(sources("policy")))
    assert found[0] == found[1] != found[2]


# --- rounds --------------------------------------------------------------------------------------


@pytest.fixture
def round_(transactional_db: None) -> Round:
    lab = world(v100=4)
    lab.submit(lab.people.bob, lab.people.astro)
    decided = lab.quantum()
    assert decided is not None
    return decided


def forged(round_: Round) -> None:
    plan = decode_decision(bytes(round_.record.decision))
    changed = Decision(**{name: getattr(plan, name) for name in plan.__slots__} | {"ask_again": 30.0})
    RoundRecord.objects.filter(round=round_).update(decision=encode(changed))


def verified(round_: Round, capsys: pytest.CaptureFixture[str], **options: Any) -> tuple[int, str]:
    """Runs the command verify_round for the round; returns its exit code and its output."""
    capsys.readouterr()
    code, problem = 0, ""
    try:
        call_command("verify_round", round_.number, **options)
    except CommandError as error:
        code, problem = error.returncode, str(error)
    return code, capsys.readouterr().out + problem


def test_a_round_records_the_build_that_decided(round_: Round) -> None:
    assert round_.policy_build == build_of(round_.policy, round_.policy_version)


def decided_by(round_: Round, build: str, capsys: pytest.CaptureFixture[str]) -> list[tuple[int, str]]:
    """Records `build` as the policy build of all rounds, and verifies the round.

    Returns two results of `verified`: with output as text, and with output as JSON.
    """
    Round.objects.update(policy_build=build)
    return [verified(round_, capsys), verified(round_, capsys, as_json=True)]


def test_a_round_of_another_build_is_not_called_tampered_with(
    round_: Round, capsys: pytest.CaptureFixture[str]
) -> None:
    this, other = round_.policy_build, "0123456789ab"
    said = "trades: decided by another build of the policy (then {}, now {}): the repeated decision {}"
    for is_forged in (False, True):
        if is_forged:
            forged(round_)
        (code, text), (same, told) = decided_by(round_, this, capsys)
        assert code == same == is_forged
        assert text.endswith(
            "trades: the repeated decision DIFFERS." if is_forged else "the repeated decision matches.\n"
        )
        assert is_told(told, matches=not is_forged, is_other_build=False)
        for before in (other, ""):
            (code, text), (same, told) = decided_by(round_, before, capsys)
            assert code == same == 3 * is_forged
            no_proof = "The change of the build may be the cause, so this does not prove an error."
            ends = f"differs from the stored one. {no_proof}" if is_forged else "matches.\n"
            assert text.endswith(said.format(before or "not stored", this, ends))
            assert is_told(told, matches=not is_forged, is_other_build=True)


def is_told(text: str, **values: object) -> bool:
    told = json.loads(text[: text.index("}") + 1])
    return bool(told.items() >= values.items())


def test_a_version_that_was_released_draws_the_same_whatever_its_build(
    round_: Round, capsys: pytest.CaptureFixture[str]
) -> None:
    Round.objects.update(policy_version=1, policy_build="0123456789ab")
    exit_code, text = verified(round_, capsys)
    assert exit_code == 1
    assert text.endswith("trades: the repeated decision DIFFERS.")
