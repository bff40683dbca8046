"""Foreign YAML is read by the version of its format, and amounts and GPUs by the words of their systems."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.importers.amounts import NoAmount, as_amount, quantity, seconds, size
from scheduling.importers.credentials import (
    has_credential,
    is_credential_name,
    redacted,
)
from scheduling.importers.credentials_in_scripts import credential_in_script
from scheduling.importers.gpus import choose, is_slice
from scheduling.importers.reading import Source, Unreadable, Yaml, read_documents
from scheduling.importers.redaction import without
from scheduling.importers.registry import convert, recognise
from scheduling.spec.attachments import read_bytes

KNOWN = ("A100-40GB", "A100-80GB", "H100", "L4", "RTX-4090", "V100")


def value(text: str, version: Yaml) -> Any:
    return read_documents(f"k: {text}\n", version)[0].data["k"]


@pytest.mark.parametrize(
    ("text", "kubernetes", "others"),
    [
        ("NO", False, "NO"), ("y", True, "y"), ("on", True, "on"), ("0755", 493, 755), ("0o17", 15, 15),
        ("22:30", "22:30", "22:30"), ("1_000", 1000, "1_000"), ("2026-11-27", "2026-11-27", "2026-11-27"),
        ("~", None, None),
        ("1e3", 1000.0, 1000.0), (".inf", ".inf", ".inf"), ("'yes'", "yes", "yes"), ("08", 8.0, 8), ("0x1F", 31, 31),
        ("._", "._", "._"), ("9" * 400, "9" * 400, "9" * 400),
    ],
)  # fmt: skip
def test_plain_scalars_are_read_by_version(text: str, kubernetes: Any, others: Any) -> None:
    assert (value(text, Yaml.V1_1), value(text, Yaml.V1_2)) == (kubernetes, others)


def test_scalars_that_versions_read_differently_are_named() -> None:
    text = "a: yes\nb: 0755\nc: 22:30\nd: plain\ne: 'no'\nf: 5\n"
    assert set(read_documents(text, Yaml.V1_2)[0].doubtful) == {"a", "b", "c"}
    assert set(read_documents(text, Yaml.V1_1)[0].doubtful) == {"a", "b"}
    assert read_documents(text, Yaml.V1_1)[0].raw["b"] == "0755"


def test_anchors_and_merge_keys_are_expanded_and_own_keys_count() -> None:
    text = "x: &x {a: 1, b: 2}\ny:\n  <<: *x\n  b: 3\nz: {<<: [*x, {c: 4}]}\n"
    data = read_documents(text, Yaml.V1_2)[0].data
    assert (data["y"], data["z"]) == ({"a": 1, "b": 3}, {"a": 1, "b": 2, "c": 4})


def test_documents_have_paths_if_there_are_several() -> None:
    found = read_documents("---\n---\na: [1]\n---\nb: 2\n", Yaml.V1_2)
    assert [(one.path, one.data) for one in found] == [("document 1", {"a": [1]}), ("document 2", {"b": 2})]
    assert found[0].lines["document 1.a[0]"] == 3
    assert [one.path for one in read_documents('{"a":\t1}', Yaml.V1_2)] == [""]


@pytest.mark.parametrize(
    "text", ["a: [", "? [a]\n: b", "a: *b", '{"a": NaN}', '{"a": 1e999}', "- " * 200 + "x", "a: \x00"]
)
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(Unreadable):
        read_documents(text, Yaml.V1_2)


@given(st.text() | st.recursive(st.sampled_from(["a", "- ", "{", "}", "[", "]", ": ", "&a ", "*a", "\n", " ", "<<: "]),
                                lambda one: st.lists(one, max_size=12).map("".join)))  # fmt: skip
def test_any_text_is_read_or_refused(text: str) -> None:
    for version in Yaml:
        with suppress(Unreadable):
            assert isinstance(Source(text).documents(version), list)


@pytest.mark.parametrize(
    ("name", "types", "exact"),
    [
        ("A100-80GB", ["A100-80GB"], True), ("nvidia-tesla-v100", ["V100"], True), ("a100_80gb", ["A100-80GB"], True),
        ("NVIDIA-A100-SXM4-80GB", ["A100-80GB"], True), ("a100", ["A100-40GB", "A100-80GB"], True),
        ("NVIDIA-H100-80GB-HBM3", ["H100"], False), ("l4", ["L4"], True), ("L40S", ["L40S"], False),
        ("rtx4090", ["RTX-4090"], True), ("NVIDIA GeForce RTX 4090", ["RTX-4090"], True),
        ("gtx-unknown", ["gtx-unknown"], False),
    ],
)  # fmt: skip
def test_names_of_gpus_find_the_types_of_the_cluster(name: str, types: list[str], exact: bool) -> None:
    found = choose(name, KNOWN)
    assert (list(found.names), found.exact) == (types, exact)
    assert bool(found.why) is not exact
    assert not choose(name, []).exact


def test_parts_of_gpus_are_recognised() -> None:
    assert all(is_slice(name) for name in ("a100_3g.20gb", "nvidia-mig-1g.5gb", "H100-MIG"))
    assert not is_slice("A100-80GB")


@given(st.integers(2**20, 2**50))
def test_amounts_are_written_as_a_specification_reads_them(number: int) -> None:
    written = read_bytes(as_amount(number))
    assert number <= written < number + 2**20


def test_units_are_read() -> None:
    assert (size("64GB"), size("64 GiB"), size("64g", binary=True), size("512", bare="MB")) == (
        64 * 10**9, 64 * 2**30, 64 * 2**30, 512 * 10**6,
    )  # fmt: skip
    assert (quantity("500m") * 2, quantity("1.5Gi"), quantity("1e3")) == (1, 3 * 2**29, 1000)
    assert (seconds("1h30m"), seconds("90", bare=60), seconds("2 days")) == (5400, 5400, 172_800)
    for read, text in ((size, "64"), (size, "many"), (quantity, "1 Gi"), (seconds, "soon"), (seconds, "5")):
        with pytest.raises(NoAmount):
            read(text)


def test_credentials_are_recognised() -> None:
    assert all(
        map(is_credential_name, ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "PASSWORD", "my_api_key", "SSH_KEY"))
    )
    assert not any(
        map(is_credential_name, ("MAX_TOKENS", "PAD_TOKEN", "sort_key", "TOKENIZERS_PARALLELISM", "KEYS"))
    )
    token = "ghp_" + "a1" * 12
    assert has_credential(f"x {token}")
    assert has_credential("https://me:pass@host/x")
    assert not has_credential("https://me:${PASSWORD}@host/x http://host:80/@x")
    assert credential_in_script("export WANDB_API_KEY=0123456789abcdef\n") == "WANDB_API_KEY"
    assert credential_in_script("python x.py --hf-token=hunter2secret") == "hf-token"
    for harmless in (
        "export HF_TOKEN=$(cat ~/.token)",
        "python x.py --max_tokens=4096 --lr=1e-3",
        "KEY=<your key>",
    ):
        assert credential_in_script(harmless) == ""
    assert redacted(f"a {token} b") == "a … b"
    assert without(f"a {token[:12]} b", [(token, 8)]) == "a … b"


@pytest.mark.parametrize(
    "part",
    [
        "{{",
        "${",
        "<%",
        "A",
        "\n",
        " ",
        "a=",
        "ml x\n",
        "srun\n",
        "$SLURM_A",
        "://a:",
        "-",
        "source ",
        "/home",
        "(",
    ],
)
def test_no_text_takes_long(part: str) -> None:
    """A text that makes a pattern search again and again would run into the watch over endless loops."""
    text = part * (120_000 // len(part))
    for name, before in (
        ("slurm", "#!/bin/bash\n#SBATCH -N2 -G2\ntrue\n"),
        ("kubernetes", "kind: Job\napiVersion: |\n  "),
    ):
        assert convert(before + text, name=name).report
    assert recognise(text) is None
