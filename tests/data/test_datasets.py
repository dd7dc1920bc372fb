"""Data sets: sources, columns, splits, parts, and error messages."""

import io
import json

import datasets
import numpy as np
import pytest
import torch
from PIL import Image, UnidentifiedImageError
from write_mirror import MIRROR

from symgen.data.datasets import load_dataset
from symgen.data.images import ImagePart, decode
from symgen.data.sources import Source
from symgen.data.texts import load_instructions, load_texts
from symgen.masking.variables import draw_words

CLASSES = ["cat", "dog", "owl"]


def png(value: int, size: int = 12, mode: str = "RGB") -> bytes:
    """An image of one grey level."""
    file = io.BytesIO()
    image = Image.new("RGB", (size, size), (value,) * 3).convert(mode)
    image.save(file, "TIFF" if mode == "F" else "PNG")
    return file.getvalue()


def write(folder, name, columns, features=None, splits=("train", "test")):
    """Write a set, given the cells of each column."""
    table = datasets.Dataset.from_dict(columns)
    for key, feature in (features or {}).items():
        table = table.cast_column(key, feature)
    (folder / name).mkdir(parents=True, exist_ok=True)
    for split in splits:
        table.to_parquet(folder / name / f"{split}.parquet")
    return name


def write_images(folder, name="someone/animals", splits=("train", "test"), changed=None):
    """Write a set whose image i has grey level i, and return its labels."""
    labels = np.random.default_rng(0).choice(3, size=120, p=[0.5, 0.3, 0.2])
    images = [{"bytes": png(i), "path": None} for i in range(120)]
    for i, cell in (changed or {}).items():
        images[i] = cell
    features = {"picture": datasets.Image(), "species": datasets.ClassLabel(names=CLASSES)}
    write(folder, name, {"picture": images, "species": labels.tolist()}, features, splits)
    return labels


def write_table(folder, columns, features=None):
    """Write a set of 60 rows with some of the columns of `CELLS`."""
    cells = {key: [CELLS[key](i) for i in range(60)] for key in columns.split()}
    return write(folder, "a/table", cells, features)


@pytest.fixture
def mirror(monkeypatch):
    """The generated data sets stand in for `SYMGEN_DATA`; they are always there."""
    assert (MIRROR / "uoft-cs/cifar10/train.parquet").is_file()
    monkeypatch.setenv("SYMGEN_DATA", str(MIRROR))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SYMGEN_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture
def animals(folder):
    return write_images(folder)


def grey(part) -> list[int]:
    return part.images[:, 0, 0, 0].tolist()


def test_digits_are_balanced_and_normalised():
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
    with pytest.raises(ValueError, match=r'part of "digits" "tests" .*Did you mean "test"'):
        data.part("tests")
    with pytest.raises(ValueError, match=r"has 449 samples of 10 classes; give 1 to 449"):
        data.sample(450, part="test")


def test_columns_are_recognised_by_their_types(animals):
    data = load_dataset("someone/animals")
    assert data.kind == "image" and data.classes == CLASSES
    for i, value in enumerate(grey(data.part("target"))):
        assert data.part("target").labels[i] == animals[value]


def photo(_):
    """A photograph, white above black, that its camera says to turn."""
    pixels = np.zeros((12, 12, 3), np.uint8)
    pixels[:6] = 255
    exif, file = Image.Exif(), io.BytesIO()
    exif[0x0112] = 6
    Image.fromarray(pixels).save(file, "PNG", exif=exif)
    return {"bytes": file.getvalue(), "path": None}


CELLS = {
    "text": lambda i: f"nice day {i}",
    "url": lambda i: f"https://example.org/status/{i}/photo/long",
    "title": lambda i: f"news {i}",
    "premise": lambda i: f"man eats {i}",
    "hypothesis": lambda i: f"he is hungry {i}",
    "image": photo,
    "label": lambda i: i % 3,
    "stars": lambda i: i % 2,
    "source": lambda i: i % 2,
    "score": lambda i: i / 2,
    "huge": lambda i: i * 10**7,
}
SOURCE = datasets.ClassLabel(names=["web", "app"])


@pytest.mark.parametrize(
    "columns, options, first, classes",
    [
        # Usual names come first, whatever the types and lengths of the others are.
        ("text url label", {}, "nice day", 3),
        ("text label source", {}, "nice day", 3),
        ("text source", {}, "nice day", 2),
        ("url title label", {"inputs": "title"}, "news", 3),
        ("text label stars", {"label": "stars"}, "nice day", 2),
        ("premise hypothesis label", {}, "man eats", 3),
        ("premise hypothesis label", {"inputs": "premise"}, "man eats", 3),
        ("url title label", {"inputs": ["title", "url"]}, "news", 3),
    ],
)
def test_columns_with_usual_names_and_named_ones(folder, capsys, columns, options, first, classes):
    features = {"source": SOURCE} if "source" in columns else {}
    features |= {"label": datasets.Value("uint8")} if "label" in columns else {}
    data = load_dataset(write_table(folder, columns, features), **options)
    assert data.part("test").show(0).startswith(first) and len(data.classes) == classes
    chosen = "inputs from column text, labels from source" in capsys.readouterr().out
    assert chosen == (columns == "text source")


@pytest.mark.parametrize(
    "columns, options, message",
    [
        ("url title label", {}, r"has the text columns url, title; expected a usual name .*"
         r"inputs=\['title', 'body'\] for pairs.*url: string, title: string, label: int64"),
        ("text stars", {}, r"has no label column.*It holds text: string, stars: int64"),
        ("label score", {}, r"has no text column.*score: float64"),
        ("text huge", {"label": "huge"}, r"holds 0 to 590000000; expected class indices"),
        ("text score", {"label": "score"}, 'column "score" .* holds float64; expected whole num'),
        ("text label", {"inputs": "txt"}, '"txt" is unknown.*Did you mean "text"'),
        ("text label", {"inputs": ["text", "text"]}, "or two different text columns for pairs"),
    ],
)  # fmt: skip
def test_ambiguous_columns_are_refused(folder, columns, options, message):
    name = write_table(folder, columns)
    with pytest.raises(ValueError, match=message):
        load_dataset(name, **options)


def test_texts_need_no_labels(folder):
    write_table(folder, "text stars")
    assert load_texts("a/table")[:2] == ["nice day 0", "nice day 1"]
    for columns, message in {
        "url title": "the text columns url, title",
        "score": "no text",
    }.items():
        with pytest.raises(ValueError, match=f"has {message}"):
            load_texts(write_table(folder, columns))


def test_pairs_of_texts_are_read_as_the_tokenizer_joins_them(folder):
    name = write_table(folder, "premise hypothesis label")
    data = load_dataset(name)
    part, tokenizer = data.part("target"), data.tokenizer
    x, _ = part.batch(range(6))
    for i in range(6):
        first, second = part.show(i).split("[SEP]")
        assert first.startswith("man eats") and second.startswith("he is hungry")
        ids = x["input_ids"][i][x["attention_mask"][i] == 1].tolist()
        assert ids == tokenizer(first, second)["input_ids"]
    # The words of both are variables, and the separator is none.
    variables, _ = draw_words([part.show(0)], tokenizer, n=5)
    number = part.show(0).split()[-1]
    assert variables.words == (("man", "eats", number, "hungry", number),)
    with pytest.warns(UserWarning, match=r"\d0 of \d0 pairs keep nothing of their second text"):
        load_dataset(name, max_length=6)


def test_photographs_are_turned_as_their_camera_says(folder):
    name = write_table(folder, "image label", {"image": datasets.Image()})
    expected = datasets.load_dataset(str(folder / name))["test"][0]["image"]
    shown = load_dataset(name).part("test").show(0)
    assert (shown == np.asarray(expected)).all() and shown[0, 0, 0] < shown[0, -1, 0]


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
    assert len(set(seen)) == len(seen) > 120 - 3 * len(parts)
    counts = [part.labels.bincount(minlength=3).tolist() for part in parts]
    assert all(count == counts[0] for count in counts)
    assert data.part("target") is parts[0] and data.part("baseline") is parts[1]


def test_baseline_on_test_samples(animals):
    data = load_dataset("someone/animals", split="test")
    assert len(data.part("target")) == 120
    assert sorted(grey(data.part("baseline"))) == sorted(grey(data.part("test")))


def test_draws_do_not_change():
    # These draws belong to measured trainings, which are reused.
    data = load_dataset("digits", train_size=300, label_noise=0.2)
    part, clean = data.part("target"), load_dataset("digits", train_size=300).part("target")
    assert part.labels[:12].tolist() == [2, 9, 3, 9, 6, 1, 1, 3, 9, 8, 7, 1]
    assert (part.labels != clean.labels).sum() == 60 and part.fingerprint != clean.fingerprint
    assert data.sample(8, seed=3).index.tolist() == [69, 186, 137, 270, 101, 55, 78, 105]


def test_seed_and_size_decide_the_split(animals):
    def target(**options):
        return grey(load_dataset("someone/animals", **options).part("target"))

    assert target(seed=1) == target(seed=1) != target(seed=2)
    small, large = target(train_size=20), target(train_size=40)
    assert len(small) == 20 and set(small) < set(large)
    labels = load_dataset("someone/animals", train_size=20).part("target").labels
    assert np.abs(labels.bincount().numpy() - np.bincount(animals) / 6).max() < 1.5


def test_samples_are_balanced_and_seeded():
    data = load_dataset("digits")
    many, few = data.sample(30, seed=5), data.sample(7, seed=5)
    assert many.y.bincount().tolist() == [3] * 10
    assert torch.equal(few.index, many.index[:7]) and few.y.unique().numel() == 7
    assert not torch.equal(few.index, data.sample(7, seed=6).index)
    part = many[5:8]
    x, y = part.part.batch(part.index)
    assert torch.equal(x, many.x[5:8]) and torch.equal(y, part.y)
    assert (part.show(0) == many.show(5)).all()


def test_augmentation_is_seeded_and_mirrors_only_if_allowed():
    pixels = torch.arange(16, dtype=torch.uint8).repeat(8, 3, 16, 1)
    labels = torch.zeros(8, dtype=torch.int64)
    for flip in (False, True):
        part = ImagePart(pixels, labels, Source(flip=flip, statistics=((0.0,) * 3, (1.0,) * 3)))
        x, again = (part.augment(range(8), torch.Generator().manual_seed(1))[0] for _ in range(2))
        assert torch.equal(x, again) and x.shape == (8, 3, 16, 16)
        middle = (x[:, 0, 8] * 255).round()
        rising = middle[:, 8] > middle[:, 6]
        assert rising.all() != flip
        assert (middle[rising].diff(dim=1)[:, 3:12] == 1).all()


def test_images_are_cropped_to_their_box(mirror):
    name = "bentrevett/caltech-ucsd-birds-200-2011"
    data = load_dataset(name, size=96, statistics=((0.5,) * 3, (0.5,) * 3))
    part = data.part("target")
    assert data.spec["image_size"] == 96 and len(part) == 12
    # Independently: the box is cut at the right edge, then 7/8 of its centre is resized.
    image = Image.open(io.BytesIO(part.encoded[2])).convert("RGB").crop((10, 5, 100, 75))
    side = 70 * 224 / 256
    box = (45 - side / 2, 35 - side / 2, 45 + side / 2, 35 + side / 2)
    expected = np.array(image.resize((96, 96), Image.BILINEAR, box=box))
    assert (part.show(2) == expected).all()
    x, _ = part.batch([2])
    assert np.allclose(x[0].permute(1, 2, 0), (expected / 255 - 0.5) / 0.5, atol=1e-5)
    x, again = (part.augment(range(8), torch.Generator().manual_seed(0))[0] for _ in range(2))
    assert x.shape == (8, 3, 96, 96) and torch.equal(x, again)
    assert len(part.fingerprint) == 16
    small = load_dataset(name, size=20).part("target")
    assert (small.show(2) == np.asarray(image.resize((20, 20)))).all()


def put_pictures(folder, paths, count=10):
    for path in paths:
        for i in range(count):
            file = folder / path / f"{i}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(png(i))
    return str(folder)


@pytest.mark.parametrize(
    "paths, classes",
    [
        (["cat", "dog/young", "dog/old/grey"], ["cat", "dog"]),
        (["train", "bus", "car"], ["bus", "car", "train"]),
        (["test-tube", "flask"], ["flask", "test-tube"]),
        (["train/bus", "train/car", "val/bus", "val/car/red"], ["bus", "car"]),
        (["train/bus", "train/car"], ["bus", "car"]),
    ],
)
def test_the_first_subfolder_is_the_class(tmp_path, paths, classes):
    data = load_dataset(put_pictures(tmp_path, paths))
    counts = [len(data.part(part)) for part in ("target", "baseline", "test")]
    assert data.classes == classes and min(counts) > 0
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden/1.png").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("mine")
    assert load_dataset(str(tmp_path)).classes == classes


@pytest.mark.parametrize(
    "paths, count, message",
    [
        (["cat"], 10, "a classification needs at least 2 classes, got 1"),
        (["cat", "dog"], 4, 'class "cat" of .* has 4 pictures; expected at least 5'),
        (["", "cat"], 10, r"0\.png belongs to no class; expected one subfolder per class"),
        (["train", "test"], 10, r"0\.png belongs to no class"),
        (["test/cat", "test/dog"], 10, "no labelled train split"),
    ],
)
def test_unclear_folders_of_pictures(tmp_path, paths, count, message):
    with pytest.raises(ValueError, match=message):
        load_dataset(put_pictures(tmp_path, paths, count))


def test_json_lines(folder):
    def lines(path, rows):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("\n".join(map(json.dumps, rows)))

    rows = [{"text": f"{w} film", "label": k % 2} for k, w in enumerate(["good", "bad"] * 20)]
    for split in ("train", "test"):
        lines(f"a/lines/{split}.jsonl", rows)
    data = load_dataset("a/lines")
    assert (data.kind, len(data.part("target"))) == ("text", 20)
    row = {"instruction": "May he?", "input": "", "output": "Yes: article 5."}
    with pytest.raises(FileNotFoundError, match=r"train\.jsonl.*publish it at .*Hanscal"):
        load_instructions("Unilaw-R1-Data")
    lines("Unilaw-R1-Data/train.jsonl", [row])
    for name in ("Unilaw-R1-Data", str(folder / "Unilaw-R1-Data")):
        assert load_instructions(name) == [row]
    lines("gaps/train.jsonl", [row | {"output": ""}])
    with pytest.raises(ValueError, match="row 1 .* has no instruction or no output"):
        load_instructions("gaps")
    with pytest.raises(ValueError, match="text columns .*; expected instruction, output"):
        load_instructions("a/lines")


@pytest.mark.parametrize(
    "options, message",
    [
        ({"name": "digit"}, 'data set "digit" is unknown.*Did you mean "digits"'),
        ({"split": "halfs"}, 'split "halfs" is unknown.*Did you mean "halves"'),
        ({"split": "parts:0"}, "expected one of halves, test, thirds, parts:K"),
        ({"train_size": 5000}, "2 part.* of 5000 samples each.*at most 67"),
        ({"train_size": 5}, "no sample of class .* remains"),
        ({"test_size": 9999}, "9999 samples.*test set"),
        ({"label_noise": 1.5}, "expected a share from 0 to 1"),
        ({"max_length": 2}, "at least 3 tokens"),
    ],
)
def test_impossible_requests(options, message):
    with pytest.raises(ValueError, match=message):
        load_dataset(**{"name": "digits", **options})


def test_unusable_cells_name_their_row(folder):
    write_images(folder, "a/damaged", changed={17: {"bytes": png(7)[:45], "path": None}})
    with pytest.raises(ValueError, match=r"row 17 of the data set is not a usable image"):
        load_dataset("a/damaged")
    # No file of the machine is opened.
    (folder / "secret.png").write_bytes(png(1))
    secret = {"bytes": None, "path": str(folder / "secret.png")}
    write_images(folder, "a/secret", changed=dict.fromkeys(range(120), secret))
    with pytest.raises(ValueError, match='holds no content in column "picture"'):
        load_dataset("a/secret")


def test_unusable_images():
    with pytest.raises(UnidentifiedImageError):
        decode(b"no image")
    with pytest.raises(ValueError, match="more than 8 bits"):
        decode(png(3, mode="F"))
    with pytest.raises(ValueError, match="bounding box begins at 20"):
        decode(png(3), box=np.array([20, 0, 5, 5]))


def test_damaged_and_incomplete_folders(folder):
    write_images(folder, "a/cut")
    file = folder / "a/cut/train.parquet"
    file.write_bytes(file.read_bytes()[:-100])
    write_images(folder, "a/trained", splits=["train"])
    (folder / "a/empty").mkdir()
    for name, message in {
        "a/cut": r"the files in .*a/cut cannot be read .*same columns",
        "a/trained": "no labelled test split.*found train",
        "a/empty": "a/empty cannot be read .*expected <split>.parquet",
        "./nowhere": 'there is no folder "./nowhere"',
        "a/../../etc": "not the id of a data set or model",
    }.items():
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            load_dataset(name)


def test_unlabelled_test_split_gives_way_to_validation(folder):
    write_images(folder, splits=["train", "validation"])
    columns = {"picture": [{"bytes": png(0), "path": None}], "species": [-1]}
    features = {"picture": datasets.Image(), "species": datasets.ClassLabel(names=CLASSES)}
    write(folder, "someone/animals", columns, features, ["test"])
    assert len(load_dataset("someone/animals").part("test")) == 120


def test_hub(monkeypatch, folder):
    requests = []

    def hub(name, revision=None):
        requests.append((name, revision))
        table = datasets.Dataset.from_dict({
            "img": [{"bytes": png(9), "path": None}] * 12, "label": [0, 1] * 6
        }).cast_column("img", datasets.Image())  # fmt: skip
        return datasets.DatasetDict(train=table, test=table)

    def unreachable(*_, **__):
        raise ConnectionError("couldn't reach the hub")

    monkeypatch.setattr(datasets, "load_dataset", hub)
    data = load_dataset("uoft-cs/cifar10")
    assert set(requests) == {("uoft-cs/cifar10", None)} and len(data.part("target")) == 6
    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(FileNotFoundError, match=r"Connect to .* or put it into SYMGEN_DATA") as e:
        load_dataset("uoft-cs/cifar-10")
    assert "uoft-cs/cifar-10/train.parquet" in str(e.value)
    assert 'Did you mean "uoft-cs/cifar10"' in str(e.value)
    monkeypatch.setenv("SYMGEN_DATA", str(folder / "nowhere"))
    with pytest.raises(FileNotFoundError, match=r"SYMGEN_DATA is .*not a folder"):
        load_dataset("a/b")
