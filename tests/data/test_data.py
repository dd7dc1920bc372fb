"""Data sets: sources, columns, splits, parts, and what is said when something is wrong."""

import hashlib
import io
import json

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from symgen.data.datasets import load_dataset
from symgen.data.hub import DATASETS, Source
from symgen.data.images import ImagePart
from symgen.data.texts import load_instructions, load_texts

CLASSES = ["cat", "dog", "owl"]


def png(value: int, size: int = 12, mode: str = "RGB") -> bytes:
    """An image of one grey level."""
    file = io.BytesIO()
    Image.new("RGB", (size, size), (value,) * 3).convert(mode).save(file, "PNG")
    return file.getvalue()


def write_images(folder, name="someone/animals", splits=("train", "test"), count=120, **changes):
    """Write a set whose image i is of grey level i (mod 256), and return its labels."""
    path = folder / name
    path.mkdir(parents=True)
    labels = np.random.default_rng(0).choice(3, size=count, p=[0.5, 0.3, 0.2])
    for split in splits:
        images = [{"bytes": png(i % 256), "path": None} for i in range(count)]
        for i, raw in changes.get("corrupt", {}).items():
            images[i] = {"bytes": raw, "path": None}
        features = datasets.Features(
            picture=datasets.Image(), species=datasets.ClassLabel(names=CLASSES)
        )
        table = datasets.Dataset.from_dict(
            {"picture": images, "species": labels.tolist()}, features=features
        )
        table.to_parquet(path / f"{split}.parquet")
    return labels


@pytest.fixture
def animals(tmp_path, monkeypatch):
    monkeypatch.setenv("SYMGEN_DATA", str(tmp_path))
    return write_images(tmp_path)


def grey(part) -> list[int]:
    return part.images[:, 0, 0, 0].tolist()


def test_digits_are_embedded_balanced_and_normalised():
    data = load_dataset("digits")
    assert data.spec == {"classes": 10, "channels": 3, "image_size": 20}
    target, baseline = data.part("target"), data.part("baseline")
    assert torch.equal(target.labels.bincount(), baseline.labels.bincount())
    x, y = target.batch(range(len(target)))
    assert x.dtype == torch.float32 and y.dtype == torch.int64
    assert abs(x.mean()) < 0.05 and abs(x.std() - 1) < 0.05
    one, label = target.batch([3])
    assert torch.equal(one[0], x[3]) and label == y[3]
    assert target.show(3).shape == (20, 20, 3)


def test_columns_are_recognised_by_their_features(animals):
    data = load_dataset("someone/animals")
    assert data.kind == "image" and data.classes == CLASSES
    for i, value in enumerate(grey(data.part("target"))):
        assert data.part("target").labels[i] == animals[value]


@pytest.mark.parametrize(
    "split, trained",
    [
        ("halves", ["target", "baseline"]),
        ("thirds", ["A", "B", "C"]),
        ("parts:4", ["target", "baseline1", "baseline2", "baseline3", "baseline4"]),
    ],
)
def test_parts_are_disjoint_with_equal_classes(animals, split, trained):
    data = load_dataset("someone/animals", split=split, seed=3)
    parts = [data.part(name) for name in trained]
    seen = [value for part in parts for value in grey(part)]
    assert len(set(seen)) == len(seen)
    assert len(seen) > 120 - 3 * len(parts)
    counts = [part.labels.bincount(minlength=3).tolist() for part in parts]
    assert all(count == counts[0] for count in counts)
    assert {"target", "baseline", "test"} <= set(data.parts)
    assert data.part("target") is parts[0] and data.part("baseline") is parts[1]


def test_baselines_can_be_trained_on_the_test_samples(animals):
    data = load_dataset("someone/animals", split="test")
    assert len(data.part("target")) == 120
    assert sorted(grey(data.part("baseline"))) == sorted(grey(data.part("test")))


def test_seed_and_size_decide_the_split(animals):
    def target(**options):
        return grey(load_dataset("someone/animals", **options).part("target"))

    assert target(seed=1) == target(seed=1) != target(seed=2)
    small, large = target(train_size=20), target(train_size=40)
    assert len(small) == 20 and set(small) < set(large)
    labels = load_dataset("someone/animals", train_size=20).part("target").labels
    share = np.bincount(animals) / 120 * 20
    assert np.abs(labels.bincount().numpy() - share).max() < 1.5


def test_label_noise_replaces_exactly_its_share():
    clean = load_dataset("digits", train_size=200)
    noisy = load_dataset("digits", train_size=200, label_noise=0.25)
    for name in ("target", "baseline"):
        part = noisy.part(name)
        assert (part.labels != clean.part(name).labels).sum() == 50
        assert part.labels.unique().numel() == 10
        assert part.fingerprint != clean.part(name).fingerprint
    assert noisy.part("test").fingerprint == clean.part("test").fingerprint


def test_classes_can_be_chosen(animals):
    assert load_dataset("digits", classes=3).classes == ["0", "1", "2"]
    data = load_dataset("someone/animals", classes=["owl", "cat"])
    assert data.classes == ["cat", "owl"]
    part = data.part("target")
    assert {CLASSES[animals[v]] for v in grey(part)} == {"cat", "owl"}
    assert part.labels.unique().tolist() == [0, 1]


def test_samples_are_balanced_and_seeded():
    data = load_dataset("digits")
    many, few = data.sample(30, seed=5), data.sample(7, seed=5)
    assert many.y.bincount().tolist() == [3] * 10
    assert torch.equal(few.index, many.index[:7]) and few.y.unique().numel() == 7
    assert not torch.equal(few.index, data.sample(7, seed=6).index)
    narrow = data.sample(20, part="test", n_classes=2)
    assert sorted(narrow.y.bincount()[narrow.y.unique()].tolist()) == [10, 10]
    assert narrow.show(0).dtype == np.uint8
    x, y = narrow.part.batch(narrow.index)
    assert torch.equal(x, narrow.x) and torch.equal(y, narrow.y)


def test_augmentation_is_seeded_and_flips_only_where_allowed():
    pixels = torch.arange(16, dtype=torch.uint8).repeat(8, 3, 16, 1)
    labels = torch.zeros(8, dtype=torch.int64)
    for flip in (False, True):
        part = ImagePart(pixels, labels, Source(flip=flip, statistics=((0.0,) * 3, (1.0,) * 3)))
        x, _ = part.augment(range(8), torch.Generator().manual_seed(1))
        again, _ = part.augment(range(8), torch.Generator().manual_seed(1))
        assert torch.equal(x, again) and x.shape == (8, 3, 16, 16)
        middle = (x[:, 0, 8] * 255).round()
        rising = middle[:, 8] > middle[:, 6]
        assert rising.all() != flip
        assert (middle[rising].diff(dim=1)[:, 3:12] == 1).all()


def test_large_images_are_decoded_when_used(tmp_path, monkeypatch):
    monkeypatch.setenv("SYMGEN_DATA", str(tmp_path))
    monkeypatch.setitem(DATASETS, "someone/boxed", Source(box="frame", size=96))
    picture = Image.new("RGB", (100, 80), (255, 0, 0))
    picture.paste((0, 0, 255), (20, 10, 60, 60))
    file = io.BytesIO()
    picture.save(file, "PNG")
    features = datasets.Features(
        image=datasets.Image(),
        label=datasets.ClassLabel(names=["a", "b"]),
        frame=datasets.List(datasets.Value("float32")),
    )
    rows = {
        "image": [{"bytes": file.getvalue(), "path": None}] * 8,
        "label": [0, 1] * 4,
        # The first box runs past the left edge, and is cut there.
        "frame": [[20.0, 10.0, 40.0, 50.0]] * 7 + [[-5.0, 0.0, 15.0, 300.0]],
    }
    for split in ("train", "test"):
        path = tmp_path / "someone" / "boxed" / f"{split}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        datasets.Dataset.from_dict(rows, features=features).to_parquet(path)
    data = load_dataset("someone/boxed")
    assert data.spec["image_size"] == 96
    test = data.part("test")
    colours = sorted(test.show(i)[48, 48].tolist() for i in range(8))
    assert colours == [[0, 0, 255]] * 7 + [[255, 0, 0]]
    x, _ = test.augment(range(8), torch.Generator().manual_seed(0))
    again, _ = test.augment(range(8), torch.Generator().manual_seed(0))
    assert x.shape == (8, 3, 96, 96) and torch.equal(x, again)


def test_grayscale_images_become_rgb(tmp_path, monkeypatch):
    monkeypatch.setenv("SYMGEN_DATA", str(tmp_path))
    write_images(tmp_path, corrupt={i: png(i, mode="L") for i in range(120)})
    x, _ = load_dataset("someone/animals").part("target").batch([0])
    assert x.shape == (1, 3, 12, 12)


# What can be wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, message",
    [
        ({"name": "digit"}, 'unknown data set "digit".*Did you mean "digits"'),
        ({"split": "halfs"}, 'split="halfs" is unknown.*Did you mean "halves"'),
        ({"split": "parts:0"}, "expected one of halves, test, thirds, parts:K"),
        ({"classes": ["9", "ten"]}, "no class 'ten'; it has 0, 1"),
        ({"classes": 11}, "classes=11.*ask for 2 to 10"),
        ({"classes": 1}, "classes=1.*ask for 2 to 10"),
        ({"train_size": 5000}, "5000 samples in each of 2 part.*at most 67"),
        ({"train_size": 5}, "no sample is left of class"),
        ({"test_size": 9999}, "9999 samples.*test set"),
        ({"label_noise": 1.5}, "expected a share from 0 to 1"),
        ({"revision": "main"}, "embedded and has no revision"),
    ],
)
def test_impossible_requests(options, message):
    with pytest.raises(ValueError, match=message):
        load_dataset(**{"name": "digits", **options})


def test_unknown_part_and_too_many_samples():
    data = load_dataset("digits")
    with pytest.raises(ValueError, match=r'no part "tests"; it has .*Did you mean "test"'):
        data.part("tests")
    with pytest.raises(ValueError, match=r"has 449 samples of the 10 classes"):
        data.sample(450, part="test")
    with pytest.raises(ValueError, match=r"n_classes=11.*ask for 1 to 10"):
        data.sample(10, n_classes=11)


def test_few_corrupt_images_are_skipped_and_named(tmp_path, monkeypatch):
    monkeypatch.setenv("SYMGEN_DATA", str(tmp_path))
    cut_off = png(7)[:45]
    write_images(tmp_path, corrupt={17: cut_off})
    with pytest.warns(
        UserWarning, match=r"2 of 2\d\d images .* corrupt .*train 17, test 17;.*truncated.*left out"
    ):
        data = load_dataset("someone/animals")
    assert 17 not in grey(data.part("target")) + grey(data.part("baseline"))


def test_many_corrupt_images_are_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("SYMGEN_DATA", str(tmp_path))
    write_images(tmp_path, corrupt=dict.fromkeys(range(5), b"no image"))
    with pytest.raises(ValueError, match=r"10 of 2.* more than 1 % is too many"):
        load_dataset("someone/animals")


def test_corrupt_parquet_and_missing_splits(tmp_path, monkeypatch):
    monkeypatch.setenv("SYMGEN_DATA", str(tmp_path))
    write_images(tmp_path, "a/cut")
    file = tmp_path / "a/cut/train.parquet"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"train\.parquet cannot be read .*copy it again"):
        load_dataset("a/cut")
    write_images(tmp_path, "a/trained", splits=["train"])
    with pytest.raises(ValueError, match=r"no labelled test split.*found train"):
        load_dataset("a/trained")
    (tmp_path / "a/empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"holds no parquet or jsonl file"):
        load_dataset("a/empty")


def test_missing_columns(tmp_path, monkeypatch):
    monkeypatch.setenv("SYMGEN_DATA", str(tmp_path))
    for name, columns in {
        "a/unlabelled": {"text": ["x", "y"]},
        "a/numbers": {"label": [0, 1], "height": [1.5, 2.5]},
    }.items():
        (tmp_path / name).mkdir(parents=True)
        datasets.Dataset.from_dict(columns).to_parquet(tmp_path / name / "train.parquet")
    with pytest.raises(ValueError, match=r"no label column.*found text: string"):
        load_dataset("a/unlabelled")
    with pytest.raises(ValueError, match=r"neither images nor text.*height: float64"):
        load_dataset("a/numbers")
    with pytest.raises(ValueError, match=r'no column of text named "texts".*Did you mean "text"'):
        load_texts("a/unlabelled", column="texts")
    assert load_texts("a/unlabelled") == ["x", "y"]


def test_unlabelled_test_split_gives_way_to_validation(tmp_path, monkeypatch):
    monkeypatch.setenv("SYMGEN_DATA", str(tmp_path))
    write_images(tmp_path, splits=["train", "validation"])
    features = datasets.Features(
        picture=datasets.Image(), species=datasets.ClassLabel(names=CLASSES)
    )
    rows = {"picture": [{"bytes": png(0), "path": None}], "species": [-1]}
    path = tmp_path / "someone/animals/test.parquet"
    datasets.Dataset.from_dict(rows, features=features).to_parquet(path)
    assert len(load_dataset("someone/animals").part("test")) == 120


def test_data_folder_must_exist_and_is_not_left(tmp_path, monkeypatch):
    monkeypatch.setenv("SYMGEN_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError, match=r"SYMGEN_DATA is set to .*no folder"):
        load_dataset("a/b")
    monkeypatch.setenv("SYMGEN_DATA", str(tmp_path))
    with pytest.raises(ValueError, match=r"no data set or model id"):
        load_dataset("a/../../etc")


def test_no_network_names_both_ways(monkeypatch):
    def unreachable(*_, **__):
        raise ConnectionError("couldn't reach the hub")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(FileNotFoundError, match=r"connect this machine .* or set SYMGEN_DATA") as e:
        load_dataset("uoft-cs/cifar10")
    assert "uoft-cs/cifar10/train.parquet" in str(e.value)


def test_unknown_id_on_the_hub_suggests_a_known_one(monkeypatch):
    def unknown(*_, **__):
        raise datasets.exceptions.DatasetNotFoundError("not found")

    monkeypatch.setattr(datasets, "load_dataset", unknown)
    with pytest.raises(FileNotFoundError, match=r'no data set.*Did you mean "uoft-cs/cifar10"'):
        load_dataset("uoft-cs/cifar-10")


def test_hub_is_asked_for_the_revision(monkeypatch):
    asked = []

    def found(name, revision=None):
        asked.append((name, revision))
        features = datasets.Features(
            img=datasets.Image(), label=datasets.ClassLabel(names=["a", "b"])
        )
        rows = {"img": [{"bytes": png(9), "path": None}] * 12, "label": [0, 1] * 6}
        table = datasets.Dataset.from_dict(rows, features=features)
        return datasets.DatasetDict(train=table, test=table)

    monkeypatch.setattr(datasets, "load_dataset", found)
    data = load_dataset("uoft-cs/cifar10", revision="abc")
    assert set(asked) == {("uoft-cs/cifar10", "abc")} and len(data.part("target")) == 6


def test_wrong_checksum_is_an_error_with_both_sums(tmp_path, monkeypatch):
    monkeypatch.setenv("SYMGEN_DATA", str(tmp_path))
    write_images(tmp_path)
    files = [tmp_path / f"someone/animals/{split}.parquet" for split in ("train", "test")]
    sums = [hashlib.sha256(f.read_bytes()).hexdigest() for f in files]
    listed = tmp_path / "SHA256SUMS"
    lines = [f"{a} {b}{f.relative_to(tmp_path)}" for a, b, f in zip(sums, " *", files, strict=True)]
    listed.write_text("\n".join([*lines, f"{'0' * 64}  another/set.parquet", ""]))
    load_dataset("someone/animals")
    listed.write_text(listed.read_text().replace(sums[0], "0" * 64))
    with pytest.raises(ValueError, match=rf"train\.parquet has .*{sums[0]}.*says 0{{64}}"):
        load_dataset("someone/animals")


def test_revision_of_a_local_copy(tmp_path, monkeypatch):
    monkeypatch.setenv("SYMGEN_DATA", str(tmp_path))
    write_images(tmp_path, count=120)
    with pytest.warns(UserWarning, match=r'"v2" was asked for.*animals@v2 would be taken'):
        assert len(load_dataset("someone/animals", revision="v2").part("test")) == 120
    write_images(tmp_path, "someone/animals@v2", count=60)
    assert len(load_dataset("someone/animals", revision="v2").part("test")) == 60
    assert len(load_dataset("someone/animals").part("test")) == 120


def test_readable_names_of_classes(tmp_path, monkeypatch):
    monkeypatch.setenv("SYMGEN_DATA", str(tmp_path))
    write_images(tmp_path)
    names = {CLASSES[0]: "house cat, Felis catus"}
    (tmp_path / "someone/animals/class_names.json").write_text(json.dumps(names))
    assert load_dataset("someone/animals").classes == ["house cat", *CLASSES[1:]]


def test_json_lines_are_read_as_parquet_is(tmp_path, monkeypatch):
    monkeypatch.setenv("SYMGEN_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"Hanscal.*Unilaw-R1-Data/train\.jsonl"):
        load_instructions("Unilaw-R1-Data")
    (tmp_path / "Unilaw-R1-Data").mkdir()
    row = {"instruction": "May he?", "input": "", "output": "Yes: article 5."}
    (tmp_path / "Unilaw-R1-Data/train.jsonl").write_text(json.dumps(row) + "\n")
    assert load_instructions("Unilaw-R1-Data") == [row]
    rows = [{"text": f"{w} film", "label": k % 2} for k, w in enumerate(["good", "bad"] * 20)]
    (tmp_path / "a/lines").mkdir(parents=True)
    for split in ("train", "test"):
        (tmp_path / f"a/lines/{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = load_dataset("a/lines")
    assert (data.kind, len(data.part("target"))) == ("text", 20)


# The paper's data ------------------------------------------------------------------------------


def test_every_data_set_of_the_paper_is_registered():
    assert {
        "uoft-cs/cifar10", "zh-plus/tiny-imagenet", "bentrevett/caltech-ucsd-birds-200-2011",
        "stanfordnlp/sst2", "fancyzhx/ag_news", "rajpurkar/squad", "Unilaw-R1-Data",
    } <= set(DATASETS)  # fmt: skip


@pytest.mark.parametrize(
    "name, options, classes, size",
    [
        ("uoft-cs/cifar10", {"train_size": 100, "test_size": 50}, 10, 32),
        ("zh-plus/tiny-imagenet", {"train_size": 100, "test_size": 50}, 50, 64),
        ("bentrevett/caltech-ucsd-birds-200-2011", {"train_size": 100, "test_size": 50}, 20, 224),
        ("stanfordnlp/sst2", {"train_size": 100, "test_size": 50}, 2, None),
        ("fancyzhx/ag_news", {"train_size": 100, "test_size": 50}, 4, None),
    ],
)
def test_classification_sets_of_the_paper(mirror, monkeypatch, name, options, classes, size):
    monkeypatch.setenv("SYMGEN_DATA", str(mirror))
    data = load_dataset(name, **options)
    assert len(data.classes) == classes and data.spec.get("image_size") == size
    assert [len(data.part(p)) for p in ("target", "baseline", "test")] == [100, 100, 50]
    x, _ = data.part("target").batch(range(8))
    if size:
        assert x.shape == (8, 3, size, size) and x.abs().max() < 4
    else:
        assert x["input_ids"].shape[0] == 8
    again = load_dataset(name, **options)
    assert again.part("target").fingerprint == data.part("target").fingerprint


@pytest.mark.parametrize(
    "name", ["rajpurkar/squad", "roneneldan/TinyStories", "karpathy/tiny_shakespeare"]
)
def test_plain_texts(mirror, monkeypatch, name):
    monkeypatch.setenv("SYMGEN_DATA", str(mirror))
    texts = load_texts(name)
    assert len(texts) == len(set(texts)) > 1000 and all(texts)
