"""Colours meet WCAG's contrast for level AA (4.5:1 for text, 3:1 for borders of fields) in light and dark mode."""

from __future__ import annotations

import re

import pytest
from django.conf import settings

TOKEN = re.compile(r"--([\w-]+): (?:light-dark\((#\w{6}), (#\w{6})\)|(#\w{6}));")
TEXT = [
    *[(colour, ground) for colour in ("text", "muted", "accent") for ground in ("page", "surface", "raised", "sunken")],
    *[("text", ground) for ground in ("hover", "accent-soft", "neutral-soft")],
    *[(tone, f"{tone}-soft") for tone in ("good", "info", "warn", "bad", "accent")],
    *[("text", f"{tone}-soft") for tone in ("good", "info", "warn", "bad")],
    *[("muted", f"{tone}-soft") for tone in ("good", "info", "warn", "bad")],
    *[(tone, "surface") for tone in ("good", "info", "warn", "bad")],
    *[(tone, "sunken") for tone in ("good", "info", "warn", "bad", "series-4")],
    *[("on-fill", fill) for fill in ("accent-fill", "accent-fill-hover", "bad-fill")],
]  # fmt: skip


def tokens(mode: int) -> dict[str, str]:
    css = (settings.BASE_DIR / "static/css/app.css").read_text()
    return {name: both or (light, dark)[mode] for name, light, dark, both in TOKEN.findall(css)}


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_text_can_be_read(mode: int) -> None:
    known = tokens(mode)
    poor = {
        (a, b): round(contrast(known[a], known[b]), 2) for a, b in TEXT if contrast(known[a], known[b]) < 4.5
    }
    assert poor == {}


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_fields_and_pictures_stand_out(mode: int) -> None:
    known = tokens(mode)
    names = ["line-strong", "accent-fill", *(f"series-{number}" for number in range(1, 7))]
    poor = {name: round(contrast(known[name], known["surface"]), 2) for name in names}
    assert {name: ratio for name, ratio in poor.items() if ratio < 3} == {}
    assert "#000000" not in known.values()
