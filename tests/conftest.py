"""What tests share: checked shapes, fixed random examples, a cache of their own, a small book."""

import inspect
import os
import re
import shutil
import sys
import tempfile
import threading
from pathlib import Path

import hypothesis
import nbformat
import pytest
from beartype import BeartypeConf, beartype
from jaxtyping import install_import_hook

# A whole number will do where a float is asked for, as it does for Python.
checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
ROOT = Path(__file__).resolve().parent.parent
# Before anything imports symgen: its annotations, shapes included, are enforced in tests. Those of
# fingerprints, which have no shapes and are called a million times, would take a fifth of the time.
CHECKED = sorted({path.stem for path in (ROOT / "symgen").iterdir()} - {"fingerprints"})
HOOK = install_import_hook([f"symgen.{name}" for name in CHECKED], "conftest.checked")

hypothesis.settings.register_profile("symgen", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("symgen")


def pytest_configure(config):
    # Here rather than in a fixture: the kernels that nbval starts inherit it as well. Where tests
    # run in several processes, these share the one that the first has made.
    if "PYTEST_XDIST_WORKER" not in os.environ:
        config.symgen_cache = tempfile.mkdtemp(prefix="symgen-cache-")
        os.environ["SYMGEN_CACHE"] = config.symgen_cache
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # Tables are kept where it is chapters that run, or what they left that is looked at.
    kept = any(re.search(r"test_fresh_tables|chapters", argument) for argument in config.args)
    for name in ("SYMGEN_DATA", "SYMGEN_RUN", *["SYMGEN_OUT"] * (not kept)):
        os.environ.pop(name, None)

    import torch

    threads = os.environ.get("OMP_NUM_THREADS")
    torch.set_num_threads(int(threads) if threads else min(4, os.cpu_count() or 1))


def pytest_unconfigure(config):
    if hasattr(config, "symgen_cache"):
        shutil.rmtree(config.symgen_cache, ignore_errors=True)


@pytest.fixture(autouse=True)
def threads_as_before():
    """More threads left by a test than it found, and what follows waits long on busy cores."""
    import torch

    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def one_thread(threads_as_before):
    """One thread for torch, and as many as before afterwards."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture
def splits(tmp_path, monkeypatch):
    """An empty cache, and a list with one entry for every batch of outputs that is split since."""
    from symgen.split.sparsify import _solve

    monkeypatch.setenv("SYMGEN_CACHE", str(tmp_path / "splits"))
    found = []
    module = sys.modules["symgen.split.sparsify"]
    monkeypatch.setattr(module, "_solve", lambda *a, **k: found.append(1) or _solve(*a, **k))
    return found


@pytest.fixture
def functions_that_run():
    """A function that calls another, and returns the definitions of symgen whose code ran."""
    import symgen

    folder = str(Path(symgen.__file__).parent)

    def run(function):
        ran = set()
        for here in (sys, threading):  # this thread, and those that it starts
            here.setprofile(lambda frame, *_: ran.add(frame.f_code))
        try:
            function()
        finally:
            for here in (sys, threading):
                here.setprofile(None)
        # Functions and methods: the bodies of modules and classes run where they are imported.
        codes = [x for x in ran if x.co_filename.startswith(folder)]
        own = {x.co_qualname.split(".")[0] for x in codes if x.co_flags & inspect.CO_OPTIMIZED}
        # What no number depends on says so.
        marked = {
            name
            for path in Path(folder).rglob("*.py")
            for name in re.findall(
                r"^@(?:not_a_result|refusal|gpu_only|same_numbers)\n(?:@.*\n)*(?:def|class) (\w+)",
                path.read_text(),
                re.M,
            )
        }
        return {name for name in own - marked if name.isidentifier()}

    return run


@pytest.fixture(scope="session")
def mirror() -> Path:
    """The folder of real data laid out by hub id, where there is one."""
    given = os.environ.get("SYMGEN_TEST_MIRROR")
    folder = Path(given) if given else ROOT.parent / "shared" / "mirror"
    if not folder.is_dir():
        pytest.skip("no mirror of real data: name one in SYMGEN_TEST_MIRROR")
    return folder


PARAMETERS = """\
preset = "quick"  # quick, cpu, gpu or paper
n = 3  # number of input variables
rate = 0.1  # a rate
dataset = "digits"  # the data
fail = False  # whether to fail half way
"""
SETUP = "from symgen import Chapter\nchapter = Chapter({name!r}, globals())"
WORK = """\
from pathlib import Path
print("n is", n, "in", Path.cwd().resolve())
if fail:
    raise ValueError("failed as told")
"""


def small_chapter(name: str, work: str = WORK, whole: bool = True) -> nbformat.NotebookNode:
    """A chapter that takes a second or two; less without what it needs symgen for."""
    v4 = nbformat.v4
    cells = [
        v4.new_markdown_cell(f"# The chapter {name}\n\nIts goals."),
        v4.new_code_cell(PARAMETERS, metadata={"tags": ["parameters"]}),
        v4.new_code_cell(SETUP.format(name=name) if whole else "chapter = None"),
        v4.new_code_cell(work),
        v4.new_code_cell("chapter.provenance()" if whole else "chapter"),
    ]
    for number, cell in enumerate(cells):
        cell.id = f"cell-{number}"
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})


@pytest.fixture
def book(tmp_path, monkeypatch) -> Path:
    """A book of two small chapters, the second whole, which is also the working folder."""
    folder = tmp_path / "book"
    (folder / "chapters" / "presets").mkdir(parents=True)
    (folder / "_toc.yml").write_text("format: jb-book\nroot: chapters/a_first\n")
    for name in ("a_first", "b_second"):
        chapter = small_chapter(name, whole=name == "b_second")
        nbformat.write(chapter, folder / "chapters" / f"{name}.ipynb")
    (folder / "chapters/presets/quick.yml").write_text("a_first: {}\nb_second:\n")
    (folder / "chapters/presets/cpu.yml").write_text("a_first: {n: 5}\n")
    monkeypatch.chdir(folder)
    return folder


LONGEST = "test_parameters.py"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest comes first, so that no worker is left with it at the end."""
    items.sort(key=lambda item: item.path.name != LONGEST)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Share out tests by their files, whose fixtures are made once; but the longest one by one."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file = nodeid.split("::")[0]
            return nodeid if file.endswith(LONGEST) else file

    config.option.loadscopereorder = False  # the order is the one above
    return ByFile(config, log)
