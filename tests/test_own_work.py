"""What a researcher brings along, from the network to H. Adapters: tests/models/test_language.py."""

import numpy as np
import pytest
import torch
from torch import nn

import symgen

WORDS = ["good", "bad", "film", "plot", "actor", "music", "dull", "fine", "long", "short"]


def power(target, baseline):
    """Return H of a target by a baseline, and of the target by itself, which is 1."""
    itself = symgen.generalization_power(target, symgen.transfer(target, target))
    assert torch.equal(itself[~itself.isnan()], torch.ones_like(itself[~itself.isnan()]))
    H = symgen.generalization_power(target, symgen.transfer(target, baseline)).nanmean()
    assert 0 <= H <= 1
    return float(H)


def vision_transformer(seed):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(seed)
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        image_size=32, patch_size=8, num_labels=3, hidden_act="gelu",
    )  # fmt: skip
    return transformers.ViTForImageClassification(config).eval()


def test_a_vision_transformer_without_a_relu():
    """There is no first ReLU (`mean_feature` says so), so the image itself is masked."""
    first, second = vision_transformer(0), vision_transformer(1)
    x = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    patches = symgen.draw_patches(4, n=5, grid=4)
    inters = [
        symgen.extract(m, x, [0, 1, 2, 0], patches, symgen.mean_feature(m, x, layer=None))
        for m in (first, second)
    ]
    power(*inters)


class Bag(nn.Module):
    """A text classifier of one's own: a mean of embeddings, and a hidden layer."""

    def __init__(self, seed, words):
        super().__init__()
        torch.manual_seed(seed)
        self.embed, self.out = nn.Embedding(words, 8, padding_idx=0), nn.Linear(8, 2)

    def get_input_embeddings(self):
        return self.embed

    def forward(self, input_ids, attention_mask):
        mask = attention_mask[..., None]
        mean = (torch.tanh(self.embed(input_ids)) * mask).sum(1) / mask.sum(1)
        return self.out(torch.tanh(3 * mean))


def own_tokenizer():
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {"[PAD]": 0, "[UNK]": 1, "[MASK]": 2} | {w: i + 3 for i, w in enumerate(WORDS)}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", mask_token="[MASK]"
    )


def test_a_text_classifier_with_its_own_tokenizer():
    tokenizer = own_tokenizer()
    texts = ["good film plot fine music", "dull actor bad film plot", "good music"]
    words, kept = symgen.draw_words(texts, tokenizer, n=4)
    assert kept.tolist() == [0, 1], "the third text has too few words"
    x = dict(tokenizer([texts[i] for i in kept], padding=True, return_tensors="pt"))
    x = {name: x[name] for name in ("input_ids", "attention_mask")}
    inters = []
    for seed in (0, 1):
        model = Bag(seed, len(tokenizer)).eval()
        mask = symgen.token_embedding(model, tokenizer.mask_token_id)
        inters.append(symgen.extract(model, x, [0, 1], words, mask))
    assert inters[0].names[0].tolist() == list(words.words[0])
    power(*inters)


def test_pairs_of_sentences(tmp_path, monkeypatch):
    import datasets

    folder = tmp_path / "mine" / "pairs"
    folder.mkdir(parents=True)
    monkeypatch.setenv("SYMGEN_DATA", str(tmp_path))
    monkeypatch.setenv("SYMGEN_CACHE", str(tmp_path / "cache"))
    for part, count in (("train", 60), ("test", 20)):
        rows = {
            "premise": [f"a {WORDS[i % 10]} {WORDS[i % 7]} story" for i in range(count)],
            "hypothesis": [f"the {WORDS[i % 3]} ending today" for i in range(count)],
            "label": [i % 2 for i in range(count)],
        }
        datasets.Dataset.from_dict(rows).to_parquet(folder / f"{part}.parquet")
    data = symgen.load_dataset("mine/pairs", train_size=20)
    shown = data.part("test").show(0)
    assert "story" in shown and "ending" in shown, "both sentences are read"
    study = symgen.Study.of({
        "dataset": "mine/pairs", "network": "bert-micro", "train_size": 20, "epochs": 1,
        "checkpoints": 1, "samples": 4, "n": 3, "baselines": 1, "evaluation_size": 10,
    })  # fmt: skip
    power(*[study.interactions(run) for run in study.runs])


@pytest.mark.filterwarnings("ignore:.*the output is the same with all variables")
def test_a_table_of_scikit_learn():
    from sklearn.ensemble import RandomForestClassifier

    generator = np.random.default_rng(0)
    table = generator.normal(size=(200, 6))
    labels = (table[:, 0] * table[:, 1] > 0).astype(int)
    forests = [
        RandomForestClassifier(20, random_state=k).fit(table[k::2], labels[k::2]) for k in (0, 1)
    ]
    columns = np.arange(6)[None]

    def interactions(forest):
        def logits(x):
            return np.log(forest.predict_proba(x) + 1e-3)

        return symgen.extract(logits, table[:10], labels[:10], columns, table.mean(0))

    target, baseline = (interactions(forest) for forest in forests)
    assert power(target, baseline) > float(symgen.chance_level(target, baseline).nanmean())


def test_checkpoints_of_a_trainer(tmp_path):
    """A file of a trainer holds more than weights, and its names have a prefix."""

    def build():
        return symgen.build_network("cnn", image_size=20)

    files = {}
    for step in (100, 20):  # as glob gave them
        network = symgen.build_network("cnn", image_size=20, seed=step)
        weights = {f"module.{name}": x for name, x in network.state_dict().items()}
        files[step] = tmp_path / f"{step}.pt"
        torch.save({"model": weights, "optimizer": {"lr": 0.1}}, files[step])
    records = [{"train_loss": 0.1}, {"train_loss": 2.0}]
    run = symgen.Checkpoints(files, build, records, key="model")
    assert run.records["train_loss"].tolist() == [2.0, 0.1], "rows stay with their files"
    x = torch.randn(3, 3, 20, 20, generator=torch.Generator().manual_seed(0))
    patches = symgen.draw_patches(3, n=4, grid=4)
    inters = [
        symgen.extract(
            run.load(step), x, [0, 1, 2], patches, symgen.mean_feature(run.load(step), x)
        )
        for step in (20, 100)
    ]
    power(*inters)
