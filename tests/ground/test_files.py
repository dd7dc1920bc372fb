"""Files of the reader's own: what a run that named them is held against later."""

import importlib
import os
import sys

import pytest

from symgen.files import own_files, own_files_changed


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder of pictures and two modules, one of which imports the other."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SYMGEN_FROM", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "pictures" / "cat").mkdir(parents=True)
    (tmp_path / "pictures" / "cat" / "1.png").write_bytes(b"one")
    (tmp_path / "own_network.py").write_text("import own_helper")
    (tmp_path / "own_helper.py").write_text("width = 1")
    yield tmp_path
    for name in ("own_network", "own_helper"):
        sys.modules.pop(name, None)


def add_a_class(here):
    (here / "pictures" / "dog").mkdir()
    (here / "pictures" / "dog" / "1.png").write_bytes(b"two")


def edit_a_picture(here):
    (here / "pictures" / "cat" / "1.png").write_bytes(b"1st")
    os.utime(here / "pictures" / "cat" / "1.png", (1, 1))


PARAMETERS = {
    "data": {"dataset": "./pictures", "network": "cnn"},
    "further data": {"dataset": "digits", "others": [{"dataset": "pictures"}]},
    "network": {"dataset": "digits", "network": "own_network:build"},
    "baseline": {"model": "tiny", "baseline": "own_network:build"},
}
CHANGES = {
    "class": (add_a_class, "data"),
    "picture": (edit_a_picture, "data"),
    "no picture": (lambda here: (here / "pictures" / "cat" / "1.png").unlink(), "data"),
    "module": (lambda here: (here / "own_network.py").write_text("width = 2"), "code"),
    "helper": (lambda here: (here / "own_helper.py").write_text("width = 2"), "code"),
    "no helper": (lambda here: (here / "own_helper.py").unlink(), "code"),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("named", PARAMETERS)
def test_a_change_of_what_was_named_is_seen_and_no_other(here, named, name):
    importlib.import_module("own_network")
    parameters, (change, what) = PARAMETERS[named], CHANGES[name]
    seen = own_files(parameters)
    assert not own_files_changed(seen, parameters)
    change(here)
    of_data = named in ("data", "further data")
    assert own_files_changed(seen, parameters) == (of_data == (what == "data"))


def test_runs_that_did_not_look_are_not_taken_for_current(here):
    assert own_files_changed({}, PARAMETERS["data"])
    assert not own_files_changed({}, {"dataset": "digits", "network": "", "title": "./pictures"})


def test_what_is_installed_is_no_file_of_the_readers_own(here):
    importlib.import_module("own_network")
    seen = {*own_files(PARAMETERS["network"])}
    assert {"own_helper.py", "own_network.py"} <= seen  # and tests, which are loaded, too
    assert not [x for x in seen if "site-packages" in x or "symgen/" in x or "lib/python" in x]
    assert own_files({"network": "resnet18", "dataset": "digits"}) == {}


def test_they_are_looked_for_from_where_the_command_was_given(here, monkeypatch):
    importlib.import_module("own_network")
    (here / "chapters").mkdir()
    monkeypatch.chdir(here / "chapters")
    monkeypatch.setenv("SYMGEN_FROM", str(here))
    seen = own_files({"network": "own_network:build", "dataset": "./pictures"})
    assert {"./pictures", "own_helper.py", "own_network.py"} <= {*seen}
