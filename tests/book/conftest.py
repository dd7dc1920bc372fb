"""One small book, run once for all tests that only read its pages."""

import shutil

import pytest

from book.small_book import make_book
from symgen.book import editions, run


@pytest.fixture
def book(tmp_path, monkeypatch):
    """A small book that no chapter was run of; the working folder is in it."""
    folder = make_book(tmp_path / "symgen")
    monkeypatch.chdir(folder / "chapters")
    return folder


@pytest.fixture(scope="session")
def ran(tmp_path_factory):
    """A small book whose chapters were run and stored as quick."""
    folder = make_book(tmp_path_factory.mktemp("ran") / "symgen")
    out = folder / "_build" / "runs" / "quick"
    for outcome in run.run_all(folder, ["00_first", "02_second"], "quick", {}, out):
        assert outcome.status == "done", outcome.message
        editions.store(folder, "quick", outcome.path)
    return folder


@pytest.fixture
def copied(ran, tmp_path, monkeypatch):
    """A copy of the book that was run, to change it."""
    folder = tmp_path / "symgen"
    shutil.copytree(ran, folder, ignore=shutil.ignore_patterns("html", "site-*"), symlinks=True)
    monkeypatch.chdir(folder)
    return folder
