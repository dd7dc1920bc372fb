"""Files that belong to figures: drawings of the chapters, and what readers' browsers load."""

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import pytest

from symgen.figures import style

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"
DRAWINGS = sorted((ROOT / "chapters" / "images").glob("*.svg"))


@pytest.mark.parametrize("path", DRAWINGS, ids=lambda path: path.stem)
def test_drawings_have_words_a_background_and_a_place(path):
    drawing = ElementTree.parse(path).getroot()
    assert drawing.find(f"{SVG}title").text and drawing.find(f"{SVG}desc").text
    # Dark letters need a light ground on a dark page.
    assert drawing.find(f"{SVG}rect").get("fill") == "#fff"
    assert not re.search(r"<script|href|url\(| style=", path.read_text())
    pages = (page.read_text() for page in (ROOT / "chapters").glob("*.ipynb"))
    assert any(re.search(rf"!\[[^\]]{{20,}}\]\(images/{path.name}\)", page) for page in pages)


def test_an_installed_package_has_style_and_script(tmp_path):
    shutil.copytree(
        ROOT / "symgen", tmp_path / "symgen", ignore=shutil.ignore_patterns("__pycache__")
    )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    command = "from setuptools.build_meta import build_wheel; print(build_wheel('.'))"
    done = subprocess.run(
        [sys.executable, "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    wheel = zipfile.ZipFile(tmp_path / done.stdout.split()[-1])
    expected = {f"symgen/figures/web/{path.name}" for path in style.WEB.iterdir()}
    assert {"symgen/figures/web/figures.css", "symgen/figures/web/figures.js"} <= expected
    assert expected <= set(wheel.namelist())
