"""What members and parameters of a sweep are called, and how many members a sweep may have."""

from __future__ import annotations

import re

from accounting.core.wording import shown
from scheduling.spec.job_spec import RESERVED_VARIABLES, VARIABLE_NAME

MOST_MEMBERS = 10_000
MOST_PARAMETERS = 20
INDEX = "index"  # what the command calls a member's number
INDEX_VARIABLE = "SWEEP_INDEX"
SWEEP_VARIABLE = "FAIRLOT_SWEEP_ID"  # the same number for all members of a sweep
LONGEST_NAME = 40  # of a parameter
LONGEST_VALUE = 500  # characters
# Up to here, floating-point numbers, JSON and the database represent each whole number alike.
LARGEST = 10**15
LONGEST_METRIC = 40
METRIC_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]{0,39}", re.ASCII)


def why_no_parameter(name: object) -> str:
    """Returns why a parameter cannot have this name; "" if it can."""
    if not isinstance(name, str) or not VARIABLE_NAME.fullmatch(name) or len(name) > LONGEST_NAME:
        return (
            f"{shown(name)} is not a parameter name: use up to {LONGEST_NAME} letters, digits and _, and do not begin "
            "with a digit"
        )
    if name in RESERVED_VARIABLES or name.startswith("FAIRLOT_") or name in {INDEX, INDEX_VARIABLE}:
        return f"{name} is set by Fairlot itself; choose another parameter name"
    return ""


def why_no_metric(name: str) -> str:
    """Returns why no program can print a metric of this name; "" if one can."""
    if METRIC_NAME.fullmatch(name):
        return ""
    return f"must have up to {LONGEST_METRIC} letters, digits, _ . / or -, and begin with a letter or _"
