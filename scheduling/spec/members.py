"""What members of a sweep are called, and how many a sweep may have."""

MOST_MEMBERS = 10_000
INDEX = "index"  # what the command calls a member's number
INDEX_VARIABLE = "SWEEP_INDEX"
