"""The stand-ins for a reader's own files are what they say, and open by the usual doors."""

import pytest
import torch
from torch import nn

import symgen
from symgen.data.texts import load_tokenizer
from symgen.models import foreign


def test_pictures_are_a_data_set(tmp_path):
    folder = foreign.write_pictures(tmp_path / "pictures", count=120)
    data = symgen.load_dataset(str(folder), train_size=20, test_size=10)
    assert data.classes == [f"digit {i}" for i in range(10)]
    assert data.spec == {"classes": 10, "channels": 3, "image_size": foreign.SIDE}


def test_models_open_from_their_folders(tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    monkeypatch.setenv("SYMGEN_CACHE", str(tmp_path / "cache"))
    state = torch.random.get_rng_state()
    foreign.write_classifier(tmp_path / "a", epochs=0)
    assert torch.equal(state, torch.random.get_rng_state())
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "a")
    tokenizer = load_tokenizer(str(tmp_path / "a"), [])
    assert tokenizer.mask_token == "[MASK]" and len(tokenizer) == model.config.vocab_size
    again = transformers.AutoModelForSequenceClassification.from_pretrained(
        foreign.write_classifier(tmp_path / "b", epochs=0)
    )
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_language_model_opens_from_its_folder(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.setenv("SYMGEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(foreign, "planted_facts", lambda split: Few())
    opened = symgen.open_language_model(str(foreign.write_language_model(tmp_path / "c", epochs=1)))
    prompt = symgen.Prompt.of("the sailor of the harbor will take", " rope", n=2)
    _, found = opened.interactions([prompt], progress=False)
    assert found.n == 2


class Few:
    """The first of the sentences, whatever is asked for."""

    def take(self, index):
        from symgen.data.planted import planted_facts

        return planted_facts("train").take(range(40))


def test_a_series_has_its_two_signs_where_it_says():
    x, y = foreign.planted_series(240, seed=3)
    early, late = x[:, 0, :40].mean(1), x[:, 0, 80:].diff(dim=1).abs().mean(1)
    kind = torch.arange(240) % 6
    assert torch.equal(y, (kind % 2 == 0).long())
    has_bump, has_burst = (kind % 2 == 0) | (kind == 1), (kind % 2 == 0) | (kind == 3)
    assert early[has_bump].min() > early[~has_bump].max()
    assert late[has_burst].mean() > 1.5 * late[~has_burst].mean()
    assert torch.equal(x, foreign.planted_series(240, seed=3)[0])


def test_the_plain_loop_learns_and_ends_in_eval_mode():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1))
    x = torch.randn(40, 2)
    y = (x[:, 0] > 0).long()
    assert foreign.fit(network, [(x, y)], epochs=200, rate=0.1) is network
    assert not network.training and (network(x).argmax(1) == y).float().mean() > 0.9
