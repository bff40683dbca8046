"""The samples of foreign formats. The name of each begins with the name of its format.

Those in `samples` can be imported, those in `refused` cannot. Each confidential value in them contains CONFIDENTIAL.
"""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
ACCEPTED = {path.stem: path.read_text() for path in sorted((HERE / "samples").iterdir())}
REFUSED = {path.stem: path.read_text() for path in sorted((HERE / "refused").iterdir())}
SAMPLES = {**ACCEPTED, **REFUSED}
CONFIDENTIAL = "abcdef0123456789"


def format_of(name: str) -> str:
    return name.partition("-")[0]
