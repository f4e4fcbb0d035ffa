"""The manual's pictures: the committed chart is what its script draws; each picture works in dark mode and is on a page."""

from __future__ import annotations

import runpy
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PICTURES = sorted((ROOT / "docs" / "pictures").glob("*.svg"))
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_chart_shows_the_committed_results() -> None:
    chart = runpy.run_path(str(ROOT / "benchmarks" / "chart.py"))
    assert chart["draw"]() == (ROOT / "docs" / "pictures" / "speed.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.stem)
def test_a_picture_has_a_title_and_colours_for_the_dark_and_fetches_nothing(picture: Path) -> None:
    text = picture.read_text(encoding="utf-8")
    drawing = ET.fromstring(text)
    assert drawing.find("{http://www.w3.org/2000/svg}title") is not None
    assert "@media (prefers-color-scheme: dark)" in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_every_picture_stands_on_a_page() -> None:
    pages = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert len(PICTURES) >= 6
    assert [picture.name for picture in PICTURES if f"pictures/{picture.name})" not in pages] == []
