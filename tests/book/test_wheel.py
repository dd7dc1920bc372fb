"""The package as it is installed: it carries the book, and declares all that it imports."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import nbformat
import pytest
import yaml
from click.testing import CliRunner
from conftest import ROOT

import symgen
from symgen.book import cli, launch, layout, notebooks, presets, tables

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory) -> Path:
    """The wheel of this tree, built in a copy of it."""
    folder = tmp_path_factory.mktemp("wheel")
    skip = shutil.ignore_patterns(".*", "_build", "build", "__pycache__", "*.egg-info", "tests")
    shutil.copytree(ROOT, folder / "source", ignore=skip)
    (folder / "source/chapters/.ipynb_checkpoints").mkdir()
    (folder / "source/chapters/.ipynb_checkpoints/00.ipynb").touch()
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*pip, "--wheel-dir", str(folder), str(folder / "source")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="session")
def installed(wheel, tmp_path_factory) -> Path:
    """A folder that the wheel is unpacked into, as pip does."""
    folder = tmp_path_factory.mktemp("site-packages")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def outside(installed, folder, *arguments):
    """Run `python -m symgen` of the installed package in a folder that is no clone."""
    variables = {**os.environ, "PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "symgen", *arguments]
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)


def test_the_wheel_holds_every_file_of_the_book_and_nothing_else_of_the_clone(installed):
    shipped = installed / "symgen" / layout.SHIPPED
    assert {*layout.book_files(shipped)} == {*layout.book_files(ROOT)}
    for name in presets.chapter_names(ROOT):
        assert (shipped / "chapters" / f"{name}.ipynb").is_file()
    for name in presets.preset_names(ROOT):
        assert (shipped / "chapters" / "presets" / f"{name}.yml").is_file()
    for name in ("claims", "reported"):
        file = f"data/paper/{name}.csv"
        assert (shipped / file).read_bytes() == (ROOT / file).read_bytes()
    assert not [*shipped.rglob(".*")]
    assert {p.name for p in installed.iterdir()} == {"symgen", f"{wheel_name()}.dist-info"}
    assert (installed / "symgen" / "py.typed").is_file()


def wheel_name():
    return f"symgen-{symgen.__version__}"


def test_an_installed_package_runs_chapters_in_an_empty_folder_and_writes_nowhere_else(
    installed, tmp_path, request
):
    name = "00_planted_logic"
    # Up to its first table, which is enough to see where things go.
    path = installed / "symgen" / layout.SHIPPED / "chapters" / f"{name}.ipynb"
    whole = path.read_bytes()
    chapter = nbformat.reads(whole.decode(), as_version=4)
    code = notebooks.own_code(chapter)
    chapter.cells = [chapter.cells[0], *code[:4], code[-1]]
    nbformat.write(chapter, path)
    request.addfinalizer(lambda: path.write_bytes(whole))
    before = {*installed.rglob("*")}
    done = outside(installed, tmp_path, "run", name)
    assert done.returncode == 0, done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["_build"]
    run = tmp_path / "_build" / "runs" / "quick"
    found = json.loads((run / f"{name}.ipynb").read_text())
    assert found["metadata"]["symgen"]["preset"] == "quick"
    assert (run / "tables" / f"{name}.found.csv").is_file()
    assert not {p for p in {*installed.rglob("*")} - before if "__pycache__" not in p.parts}


RUN = """
import importlib.util, sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
print("before:", importlib.util.find_spec("symgen"))
for _ in range(2):
    shell.run_cell(open(sys.argv[1]).read()).raise_error()
    sys.path_importer_cache.clear()
import symgen
print("after:", symgen.__file__)
"""


def test_the_cell_installs_the_package_where_it_is_missing(wheel, tmp_path):
    # Everything of this environment but symgen, so that nothing has to be fetched.
    (tmp_path / "libraries").mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if "symgen" not in path.name:
            (tmp_path / "libraries" / path.name).symlink_to(path)
    venv.create(tmp_path / "fresh", with_pip=False, symlinks=True)
    python = tmp_path / "fresh" / "bin" / "python"
    own = next((tmp_path / "fresh" / "lib").glob("python*")) / "site-packages"
    (own / "others.pth").write_text(str(tmp_path / "libraries"))
    cell = launch.install_cell(wanted=f"symgen[notebook] @ {wheel.as_uri()}")
    (tmp_path / "cell.ipy").write_text(cell.source)
    (tmp_path / "run.py").write_text(RUN)
    variables = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    variables |= {
        "PIP_NO_INDEX": "1",
        "PIP_NO_COMPILE": "1",
        "IPYTHONDIR": str(tmp_path / "ipython"),
    }
    done = subprocess.run(
        [str(python), "run.py", "cell.ipy"], cwd=tmp_path, env=variables, capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "before: None" in done.stdout
    assert f"after: {own / 'symgen' / '__init__.py'}" in done.stdout
    assert (own / "symgen" / layout.SHIPPED / "chapters").is_dir()


def test_what_is_stored_is_stored_in_a_book_at_hand(installed, tmp_path):
    done = outside(installed, tmp_path, "run", "00_planted_logic", "--store")
    assert done.returncode == 2
    assert "there is none here or above" in done.stderr and "symgen new FOLDER" in done.stderr
    assert not any(tmp_path.iterdir())


def test_a_book_is_laid_out_whole_and_never_over_anything(installed, tmp_path):
    (tmp_path / "course").mkdir()
    done = outside(installed, tmp_path, "new", "course")
    assert done.returncode == 0, done.stderr
    assert "cd course\n  symgen run 00_planted_logic" in done.stdout
    laid = {p.relative_to(tmp_path / "course") for p in (tmp_path / "course").rglob("*.*")}
    assert {*layout.book_files(ROOT)} <= laid
    assert [p.name for p in tmp_path.iterdir()] == ["course"]
    again = outside(installed, tmp_path, "new", "course")
    assert again.returncode == 2
    assert "course is not empty" in again.stderr and "name a new folder" in again.stderr


def test_a_copy_that_is_cut_short_leaves_nothing(book, tmp_path, monkeypatch):
    def copyfile(source, target):
        raise OSError("the disk is full")

    monkeypatch.setattr(shutil, "copyfile", copyfile)
    with pytest.raises(OSError, match="full"):
        layout.lay_out(book, tmp_path / "new")
    assert [p.name for p in tmp_path.iterdir()] == ["book"]


def test_a_book_of_ones_own_runs_stores_and_checks_its_own_results(book, tmp_path, monkeypatch):
    (book / "data/editions/quick/tables").mkdir(parents=True)
    (book / "data/editions/quick/tables/z.mine.csv").write_text("x\n3\n")
    for name in ("_config.yml", "references.bib", "_static"):
        (book / name).touch()
    own = tmp_path / "own"
    layout.lay_out(book, own)
    monkeypatch.chdir(own / "chapters")
    assert presets.book_folder() == presets.workplace() == own
    assert tables.read_results("mine").values.tolist() == [["quick", "z", 3]]
    assert len(tables.reported("claims"))  # the paper's, which come with the package
    ran = CliRunner().invoke(cli.app, ["run", "a_first", "--store"])
    assert ran.exit_code == 0, ran.output
    told = CliRunner().invoke(cli.app, ["verify"])
    assert "stale: b_second" in told.stderr and "stale: a_first" not in told.stderr


def imports():
    """Each import of the package: its file, the name, and whether it is done with the module's."""
    for path in sorted((ROOT / "symgen").rglob("*.py")):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module]
            for name in {x.split(".")[0] for x in names}:
                if name not in {*sys.stdlib_module_names, "symgen"}:
                    yield str(path.relative_to(ROOT)), name, node in tree.body


def declared(*extras):
    """The distributions that the package needs with some extras, those of their extras included."""
    found = set()
    for extra in extras:
        group = PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"]
        for line in group:
            name, inner = re.match(r"([\w-]+)(?:\[(.*?)\])?", line).groups()
            found |= declared(*inner.split(",")) if name == "symgen" else {name.lower()}
    return found


def test_every_imported_library_is_declared():
    homes = metadata.packages_distributions()
    everything = declared("", *(x for x in PROJECT["optional-dependencies"] if x != "test"))
    found = [*imports()]
    assert len(found) > 100
    for file, name, at_once in found:
        needed = {x.lower() for x in homes.get(name, [name])}
        assert needed & everything, f"{file} imports {name}, which pyproject.toml does not declare"
        # What reads and cleans pages is loaded with the site alone.
        if at_once and file != "symgen/book/inert.py":
            assert needed & declared(""), f"{file} imports {name} at once, which only extras have"


def test_everything_declared_was_tested_in_one_version():
    tested = (ROOT / "constraints.txt").read_text().lower().replace("_", "-")
    # Many machines are no part of the tested environment.
    extras = [x for x in PROJECT["optional-dependencies"] if x != "cluster"]
    for name in declared("", *extras):
        assert re.search(rf"^{name.replace('_', '-')}==", tested, re.M), name


def test_the_version_is_said_once():
    assert "version" in PROJECT["dynamic"]
    told = CliRunner().invoke(cli.app, ["--version"]).output
    assert told == f"symgen, version {symgen.__version__}\n"
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == symgen.__version__
    assert f"\n## {symgen.__version__}, " in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("title: x\n", ""),
        ('repository:\n  url: ""\n', ""),
        ("repository:\n  url:  # none yet\n", ""),
        ("repository:\n  url: https://example.org/OWNER/<name>\n", ""),
        (
            "html: {}\nrepository:\n  url: https://example.org/a/b/\nx: 1\n",
            "https://example.org/a/b",
        ),
        ("repository:\n  # why\n  branch: main\n  url: 'https://e.org/a'", "https://e.org/a"),
        ("repository:\n  branch: main\nother:\n  url: https://e.org/a\n", ""),
        ("repository:\n  url: javascript:alert(1)\n", ""),
    ],
)
def test_the_address_of_the_repository_is_one_setting_and_may_be_missing(tmp_path, text, address):
    (tmp_path / "_config.yml").write_text(text)
    assert layout.repository(tmp_path) == address


def test_a_container_and_a_hook_use_the_environment_of_make():
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    assert container["postCreateCommand"] == "make environment"
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    entries = [hook["entry"] for repo in hooks for hook in repo["hooks"]]
    lint = (ROOT / "Makefile").read_text().split("\nlint:")[1].split("\n\n")[0]
    for entry in entries:
        command = entry.removeprefix(".venv/bin/").removesuffix(" --force-exclude")
        assert f"$(BIN)/{command} ." in lint
