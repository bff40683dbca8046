"""A job spec has a maximum length, and must not set environment variables that grant access to GPUs."""

from __future__ import annotations

import pytest

from scheduling.spec.job_spec import LONGEST_YAML, RESERVED_VARIABLES, JobSpec, SpecError

SPEC = {"name": "x", "command": "true"}
# Container runtimes and drivers of these vendors grant devices through environment variables with these prefixes.
OF_VENDORS = ("CUDA", "NVIDIA", "AMD", "HABANA", "ASCEND")


def test_yaml_is_read_up_to_64_kib() -> None:
    assert LONGEST_YAML == 64 * 1024
    text = "name: x\ncommand: 'true'\n#"
    assert JobSpec.from_yaml(text.ljust(LONGEST_YAML, "x")).name == "x"
    with pytest.raises(SpecError) as refused:
        JobSpec.from_yaml(text.ljust(LONGEST_YAML + 1, "x"))
    assert refused.value.problems == {"yaml": "must have at most 65\xa0536 characters, not 65\xa0537"}


@pytest.mark.parametrize("field", ["variables", "secrets"])
@pytest.mark.parametrize(
    "name",
    [*(f"{vendor}_VISIBLE_DEVICES" for vendor in OF_VENDORS), *sorted(RESERVED_VARIABLES), "FAIRLOT_X"],
)
def test_variables_that_hand_out_devices_or_are_fairlots_are_refused(field: str, name: str) -> None:
    value = "team/key" if field == "secrets" else "all"
    with pytest.raises(SpecError, match=f"{name} is set by Fairlot itself"):
        JobSpec.parse(SPEC | {field: {name: value}})
