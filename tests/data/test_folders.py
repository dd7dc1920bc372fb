"""Folders of pictures, one subfolder a class."""

import numpy as np
import pytest
from PIL import Image

import symgen
from symgen.data.datasets import load_dataset
from symgen.data.folders import picture_splits


def picture(path, shade, size=8):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((size, size, 3), shade, np.uint8)).save(path)


@pytest.fixture
def pets(tmp_path, monkeypatch):
    """Ten cats, whose shades are their numbers, and fifteen dogs, from 100 on."""
    monkeypatch.setenv("SYMGEN_FROM", str(tmp_path))
    for i in range(10):
        picture(tmp_path / f"pets/cat/{i:02}.png", i)
    for i in range(15):
        picture(tmp_path / f"pets/dog/{i:02}.PNG", 100 + i)
    (tmp_path / "pets/dog/notes.txt").write_text("no picture")
    (tmp_path / "pets/.hidden").mkdir()
    return tmp_path / "pets"


def shades(part):
    return sorted(int(part.images[i].float().mean().round()) for i in range(len(part)))


@pytest.mark.parametrize("form", ["pets", "./pets", "{folder}"])
def test_every_fifth_picture_is_held_out(pets, form):
    data = load_dataset(form.format(folder=pets))
    assert data.kind == "image" and data.classes == ["cat", "dog"]
    assert data.spec == {"classes": 2, "channels": 3, "image_size": 8}
    assert shades(data.part("test")) == [4, 9, 104, 109, 114]
    trained = shades(data.part("target")) + shades(data.part("baseline"))
    everything = {*range(10), *range(100, 115)}
    assert {*trained} == everything - {4, 9, 104, 109, 114} and len({*trained}) == len(trained)
    for part in (data.part("test"), data.part("target")):
        cat = part.labels == 0
        assert (part.images.float().mean((1, 2, 3)) < 50).equal(cat)


def test_folders_of_train_and_test_stay_what_they_are(pets, tmp_path):
    for split, count, first in (("train", 6, 0), ("val", 3, 50)):
        for i in range(count):
            picture(tmp_path / f"divided/{split}/a/{i}.jpg", first + i)
            picture(tmp_path / f"divided/{split}/b/{i}.png", 100 + first + i)
    data = load_dataset("divided")
    assert data.classes == ["a", "b"] and shades(data.part("test")) == [50, 51, 52, 150, 151, 152]
    assert len(data.part("target")) == len(data.part("baseline")) == 6


def test_pictures_by_class_are_studied(pets):
    study = symgen.Study.of(
        {"dataset": str(pets), "train_size": None, "epochs": 1, "samples": 2, "n": 3, "grid": 2},
        baselines=1,
    )
    assert len(study.interactions()[0]) == 2
    before = study.data.part("test").fingerprint
    picture(pets / "cat/04.png", 60)
    assert load_dataset(str(pets)).part("test").fingerprint != before


def test_what_is_no_folder_of_pictures_is_told(pets, tmp_path):
    for name in ("./nosuch", str(tmp_path / "nosuch")):
        with pytest.raises(FileNotFoundError, match="no folder .*one subfolder of pictures"):
            load_dataset(name)
    (tmp_path / "none").mkdir()
    with pytest.raises(
        FileNotFoundError, match="holds no parquet or jsonl file.*subfolder of pict"
    ):
        load_dataset("none")
    with pytest.raises(ValueError, match="unknown data set .nosuch.*one subfolder of pictures"):
        load_dataset("nosuch")
    picture(tmp_path / "one/cat/0.png", 1)
    picture(tmp_path / "one/cat/1.png", 1)
    with pytest.raises(
        ValueError, match="fewer than 5 pictures of class cat; .*divide it into train"
    ):
        load_dataset("one")
    (pets / "cat" / "00.png").write_bytes(b"damaged")
    with pytest.raises(ValueError, match="1 of 25 images .*no file of PNG"):
        load_dataset(str(pets))


def test_a_subfolder_without_pictures_is_told(pets):
    (pets / "zzz").mkdir()
    with pytest.warns(UserWarning, match="zzz in .* has no pictures .* left out of the classes"):
        found = picture_splits(pets, ("test",))
    assert "zzz" not in found["train"]().classes
