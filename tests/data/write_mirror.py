"""Write the small generated data sets in `mirror/`: python tests/data/write_mirror.py

They have the ids and columns of the real sets, so that tests read real-data paths anywhere.
"""

import io
from pathlib import Path

import datasets
import numpy as np
from PIL import Image, ImageDraw

MIRROR = Path(__file__).parent / "mirror"
NOUNS = ["dog", "cat", "farmer", "river", "baker", "castle", "garden", "sailor", "teacher"]
VERBS = ["found", "lost", "carried", "painted", "followed", "repaired"]
GOOD, BAD = ("superb", "gentle", "brilliant"), ("dull", "clumsy", "tedious")
TOPICS = (
    "league match team",
    "market shares profit",
    "minister vote council",
    "chip satellite lab",
)


def picture(kind: int, width: int, height: int, generator, file_type: str = "PNG") -> bytes:
    """An image file of one shape, whose number of corners and colour show its class."""
    image = Image.new("RGB", (width, height), tuple(generator.integers(0, 60, 3).tolist()))
    angles = 2 * np.pi * (np.arange(kind % 5 + 3) + generator.random()) / (kind % 5 + 3)
    middle = np.array([width, height]) * generator.uniform(0.4, 0.6, 2)
    corners = middle + 0.35 * min(width, height) * np.stack([np.cos(angles), np.sin(angles)], 1)
    colour = tuple(np.roll([230, 40 + 30 * (kind // 5), 90], kind).tolist())
    ImageDraw.Draw(image).polygon([tuple(c) for c in corners.tolist()], fill=colour)
    file = io.BytesIO()
    image.save(file, file_type, quality=40)
    return file.getvalue()


def images(name, column, classes, counts, size, file_type="PNG", box=None):
    for seed, (split, count) in enumerate(counts.items()):
        generator = np.random.default_rng(seed)
        labels = [k % len(classes) for k in range(count * len(classes))]
        cells = [{"bytes": picture(k, *size, generator, file_type), "path": None} for k in labels]
        columns = {column: cells, "label": labels}
        kinds = {column: datasets.Image(), "label": datasets.ClassLabel(names=classes)}
        if box:
            columns["bbox"] = [box] * len(labels)
            kinds["bbox"] = datasets.List(datasets.Value("float32"))
        write(name, split, columns, kinds)


def write(name, split, columns, kinds=None):
    path = MIRROR / name / f"{split}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    features = datasets.Features(kinds) if kinds else None
    datasets.Dataset.from_dict(columns, features=features).to_parquet(path)


def sentences(count: int, seed: int) -> list[str]:
    generator = np.random.default_rng(seed)
    draws = [(generator.permutation(NOUNS)[:3], generator.choice(VERBS)) for _ in range(count)]
    return [f"The {a} {verb} the {b} near the {c} ." for (a, b, c), verb in draws]


def main() -> None:
    animals = [
        "airplane",
        "automobile",
        "bird",
        "cat",
        "deer",
        "dog",
        "frog",
        "horse",
        "ship",
        "truck",
    ]
    images("uoft-cs/cifar10", "img", animals, {"train": 16, "test": 8}, (32, 32))
    wordnet = ["n02123045", "n02504458", "n03085013"]
    images("zh-plus/tiny-imagenet", "image", wordnet, {"train": 12, "valid": 6}, (64, 64))
    birds, name = ["Albatross", "Auklet", "Bunting"], "bentrevett/caltech-ucsd-birds-200-2011"
    images(
        name, "image", birds, {"train": 8, "test": 4}, (100, 80), "JPEG", [10.0, 5.0, 95.0, 70.0]
    )
    for seed, split in enumerate(("train", "validation")):
        texts, generator = sentences(160, seed), np.random.default_rng(seed)
        labels = [k % 2 for k in range(len(texts))]
        texts = [
            f"A {generator.choice((BAD, GOOD)[y])} film . {t}"
            for y, t in zip(labels, texts, strict=True)
        ]
        columns = {"idx": list(range(160)), "sentence": texts, "label": labels}
        names = datasets.ClassLabel(names=["negative", "positive"])
        kinds = {"idx": datasets.Value("int32"), "sentence": datasets.Value("string")}
        write("stanfordnlp/sst2", split, columns, {**kinds, "label": names})
    for seed, split in enumerate(("train", "test")):
        texts = [f"News of {TOPICS[k % 4]} : {t}" for k, t in enumerate(sentences(120, 10 + seed))]
        names = datasets.ClassLabel(names=["World", "Sports", "Business", "Sci/Tech"])
        columns = {"text": texts, "label": [k % 4 for k in range(120)]}
        write(
            "fancyzhx/ag_news", split, columns, {"text": datasets.Value("string"), "label": names}
        )
    stories = [" ".join(sentences(4, 100 + k)) for k in range(120)]
    write("roneneldan/TinyStories", "train", {"text": stories})
    write("karpathy/tiny_shakespeare", "train", {"text": [f"FIRST CITIZEN : {s}" for s in stories]})
    questions = [f"Who {verb} it ?" for verb in VERBS * 20]
    write("rajpurkar/squad", "validation", {"question": questions, "context": stories})


if __name__ == "__main__":
    main()
