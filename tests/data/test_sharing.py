"""Interactions in folders and on the hub: what is pulled is what was pushed."""

import shutil

import huggingface_hub
import pytest
import torch

import symgen
from symgen.data.sharing import pull, push
from symgen.split.design import draw_states
from symgen.split.sampled import SampledInteractions, sparsify_sampled

FOUND = symgen.sparsify(torch.tensor([[0.0, 1.0, 1.0, 3.0], [0.0, 2.0, 0.0, 1.0]]))


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub that is a folder, and notes how it was called."""
    calls = []

    class Api:
        def create_repo(self, repo_id, **options):
            calls.append((repo_id, options))

        def upload_file(self, path_or_fileobj, path_in_repo, repo_id, repo_type):
            (tmp_path / repo_id).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path_or_fileobj, tmp_path / repo_id / path_in_repo)

    def download(repo_id, filename, repo_type, revision):
        path = tmp_path / repo_id / filename
        if not path.is_file():
            raise huggingface_hub.errors.LocalEntryNotFoundError(f"no {filename}")
        return str(path)

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.delenv("SYMGEN_DATA", raising=False)
    return calls


def test_what_is_pulled_from_a_hub_is_what_was_pushed(hub):
    push(FOUND, "me/results", "epoch-10")
    assert hub == [("me/results", {"repo_type": "dataset", "private": True, "exist_ok": True})]
    assert pull("me/results", "epoch-10") == FOUND
    with pytest.raises(FileNotFoundError, match=r'"me/results" could not be had.*epoch-11'):
        pull("me/results", "epoch-11")


def test_interactions_of_sampled_states_are_shared_too(hub, tmp_path):
    states = draw_states(20, 60)
    found = sparsify_sampled(((states & 5) == 5).double()[None], states, 20, max_order=2)
    for place in (str(tmp_path / "mine"), "me/results"):
        push(found, place)
        again = pull(place)
        assert isinstance(again, SampledInteractions)
        assert again.to_frame().equals(found.to_frame())


def test_a_folder_is_a_path_too_and_a_bare_word_is_no_place(hub, tmp_path):
    push(FOUND, tmp_path / "mine")
    assert pull(tmp_path / "mine") == FOUND == pull(str(tmp_path / "mine"))
    for share in (lambda: push(FOUND, "results"), lambda: pull("results")):
        with pytest.raises(ValueError, match=r'"results" is neither a folder, such as "./results"'):
            share()
    assert not hub


def test_a_copy_under_symgen_data_is_taken_first(hub, tmp_path, monkeypatch):
    (tmp_path / "me" / "results").mkdir(parents=True)
    FOUND.save(tmp_path / "me" / "results" / "interactions.safetensors")
    monkeypatch.setenv("SYMGEN_DATA", str(tmp_path))
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", None)
    assert pull("me/results") == FOUND


def test_folders_are_seen_from_where_the_program_was_started(tmp_path, monkeypatch):
    monkeypatch.setenv("SYMGEN_FROM", str(tmp_path))
    push(FOUND, "./results")
    assert (tmp_path / "results" / "interactions.safetensors").is_file()
    assert pull("./results") == FOUND
    with pytest.raises(FileNotFoundError):
        pull("./elsewhere")


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b"])
def test_names_stay_in_their_place(name, tmp_path):
    for act in (lambda: push(FOUND, str(tmp_path), name), lambda: pull(str(tmp_path), name)):
        with pytest.raises(ValueError, match="no name of a file"):
            act()


def test_a_hub_that_cannot_be_written_to_is_told_with_the_other_way(hub, monkeypatch):
    def unreachable(*_, **__):
        raise ConnectionError("Name or service not known")

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", unreachable)
    with pytest.raises(OSError, match=r"could not be written .*Name or service.*\"./me/results\""):
        push(FOUND, "me/results")
