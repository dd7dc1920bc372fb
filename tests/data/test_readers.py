"""Files that a user gives: whatever is in them, one sentence says what is wrong and where."""

import hashlib
import io
import json
import random
import struct
import zlib

import datasets
import numpy as np
import PIL
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from symgen.data.datasets import load_dataset
from symgen.data.hub import DATASETS, Source
from symgen.data.images import decode
from symgen.data.parts import TextPart
from symgen.data.texts import instructions_of, load_instructions, load_texts, load_tokenizer

LABEL = datasets.ClassLabel(names=["cat", "dog"])
FILES = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM")


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("SYMGEN_DATA", str(tmp_path))
    datasets.disable_progress_bars()
    return tmp_path


def picture(kind="PNG", mode="RGB", seed=0, **options) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, kind, **options)
    return file.getvalue()


def write(root, name, columns, features=None):
    """Write a set whose two splits are the same, and return the folder."""
    folder = root / name
    folder.mkdir(parents=True)
    table = datasets.Dataset.from_dict(columns, features=features and datasets.Features(features))
    for split in ("train", "test"):
        table.to_parquet(folder / f"{split}.parquet")
    return folder


def write_lines(root, name, lines):
    folder = root / name
    folder.mkdir(parents=True)
    for split in ("train", "test"):
        (folder / f"{split}.jsonl").write_bytes("\n".join(lines).encode())
    return folder


def texts(count=12, **changed):
    return {"text": [f"word {i} is good" for i in range(count)], "label": [0, 1] * (count // 2)}


def refused(root, name, columns, features, message):
    write(root, name, columns, features)
    with pytest.raises(ValueError, match=message) as error:
        load_dataset(name)
    assert "\n" not in str(error.value)


# Any bytes at all ------------------------------------------------------------------------------

BITS = (b"null", b"[]", b"{}", b"\xff\xfe", b"\0", b"-1", b"1e999", b'"\\ud800"', b"9" * 30, b"\n")
WHOLE = (b"", b"null", b"[]", b"3", b'"a"', b"\xff\xfe", b"[" * 100_000, b"{}\n" * 4)


def damaged(whole: bytes, number: int) -> bytes:
    """The file with some bytes changed, cut out, put in or repeated; or something else."""
    if number < len(WHOLE):
        return WHOLE[number]
    if number == len(WHOLE):
        return b"null\n" + whole
    draw = random.Random(number)
    content = bytearray(whole)
    for _ in range(draw.choice([1, 1, 1, 2, 4, 16])):
        at = draw.randrange(len(content) + 1)
        change = draw.randrange(5)
        if change == 0:
            content[at : at + 1] = bytes([draw.randrange(256)])
        elif change == 1:
            del content[at : at + draw.choice([1, 4, 50])]
        elif change == 2:
            content[at : at + draw.choice([0, 1, 4])] = draw.choice(BITS)
        elif change == 3:
            del content[at:]
        else:
            content[at:at] = content[: draw.choice([1, 8, 60])]
    return bytes(content)


def parquet_of_images(root):
    images = [{"bytes": picture(seed=i), "path": None} for i in range(8)]
    columns = {"image": images, "label": [0, 1] * 4}
    folder = write(root, "a/b", columns, {"image": datasets.Image(), "label": LABEL})
    return folder / "train.parquet", lambda: load_dataset("a/b").part("target").batch([0])


def parquet_of_texts(root):
    folder = write(root, "a/b", texts())
    return folder / "train.parquet", lambda: (load_dataset("a/b"), load_texts("a/b"))


def lines_of_texts(root):
    pairs = zip(*texts().values(), strict=True)
    lines = [json.dumps({"text": text, "label": label}) for text, label in pairs]
    folder = write_lines(root, "a/b", lines)
    return folder / "train.jsonl", lambda: (load_dataset("a/b"), load_texts("a/b"))


def instructions(root):
    path = root / "rows.jsonl"
    path.write_text(3 * '{"instruction": "May he?", "input": "", "output": "Yes é"}\n')
    return path, lambda: load_instructions(str(path))


def names_of_classes(root):
    path = write(root, "a/b", texts()) / "class_names.json"
    path.write_text('{"0": "cat, Felis", "1": "dog"}')
    return path, lambda: load_dataset("a/b")


def list_of_sums(root):
    folder, path = write(root, "a/b", texts()), root / "SHA256SUMS"
    sums = {f: hashlib.sha256(f.read_bytes()).hexdigest() for f in folder.iterdir()}
    path.write_text("".join(f"{s}  {f.relative_to(root)}\n" for f, s in sums.items()))
    return path, lambda: load_texts("a/b")


def tokenizer_file(root, name="tokenizer.json"):
    load_tokenizer(None, ["some words and letters", "more words"]).save_pretrained(root / "a/b")

    def read():
        tokenizer = load_tokenizer("a/b", [])
        TextPart(["some words", "two"], torch.zeros(2, dtype=torch.int64), tokenizer, 9).batch([1])

    return root / "a/b" / name, read


def tokenizer_settings(root):
    return tokenizer_file(root, "tokenizer_config.json")


READERS = [
    parquet_of_images, parquet_of_texts, lines_of_texts, instructions, names_of_classes,
    list_of_sums, tokenizer_file, tokenizer_settings,
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("reader", READERS)
def test_any_bytes_are_read_or_refused_in_one_sentence(root, reader):
    path, read = reader(root)
    whole = path.read_bytes()
    read()
    wrong = 0
    for number in range(40):
        path.write_bytes(damaged(whole, number))
        try:
            read()
        except (ValueError, OSError) as error:
            assert type(error) in (ValueError, FileNotFoundError), number
            assert ("\n" not in str(error) and str(root) in str(error)) or "a/b" in str(error)
            wrong += 1
    assert wrong >= 20


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", FILES)
def test_any_bytes_are_an_image_or_a_reason(kind):
    whole = picture(kind)
    assert decode(whole).size == (8, 8)
    wrong = 0
    for number in range(40):
        try:
            assert decode(damaged(whole, number)).mode == "RGB"
        except ValueError as error:
            assert str(error).startswith("no usable image: ") and "\n" not in str(error)
            wrong += 1
    assert wrong >= 10


# Rows ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changed, features, message",
    [
        ({"text": [], "label": []}, None, r"train\.parquet holds no rows"),
        ({"text": ["a"] * 11 + [None]}, None, 'row 11 of the train split of "a/b" has no text'),
        ({"label": [0, 1] * 5 + [0, None]}, None, "row 11 .* has the label None; expected a whole"),
        ({"label": [0, 1] * 5 + [0, -2]}, None, "row 11 .* has the label -2"),
        ({"label": [0] * 11 + [10**12]}, None, r"row 11 .* the label 10{12}; expected .* to 9999"),
        ({"label": [None] * 12}, {"label": LABEL}, "no labelled train split"),
        ({"text": [1] * 12}, None, "neither images nor text"),
    ],
)
def test_rows_that_cannot_be_used(root, changed, features, message):
    features = features and {"text": datasets.Value("string"), **features}
    if changed.get("text") == []:
        features = {"text": datasets.Value("string"), "label": LABEL}
    refused(root, "a/b", texts() | changed, features, message)


def test_a_label_beyond_the_names_of_the_classes(root):
    folder = write(root, "a/b", texts(), {"text": datasets.Value("string"), "label": LABEL})
    named = {"names": ["cat"], "_type": "ClassLabel"}
    for path in folder.iterdir():
        table = pq.read_table(path)
        about = json.loads(table.schema.metadata[b"huggingface"])
        about["info"]["features"]["label"] = named
        pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(about)}), path)
    with pytest.raises(ValueError, match="row 1 .* has the label 1; expected .* from 0 to 0"):
        load_dataset("a/b")


@pytest.mark.parametrize("box", [[1.0, 2.0], [], None, [0.0, 0.0, float("nan"), 1.0]])
def test_a_box_without_four_sides(root, monkeypatch, box):
    monkeypatch.setitem(DATASETS, "a/b", Source(box="box", size=8))
    columns = {
        "image": [{"bytes": picture(seed=i), "path": None} for i in range(8)],
        "label": [0, 1] * 4,
        "box": [[0.0, 0.0, 8.0, 8.0]] * 7 + [box],
    }
    features = {
        "image": datasets.Image(), "label": LABEL, "box": datasets.List(datasets.Value("float64")),
    }  # fmt: skip
    refused(root, "a/b", columns, features, "row 7 of the train split .* has the bounding box")


def test_splits_of_other_classes(root):
    folder = write(root, "a/b", texts(), {"text": datasets.Value("string"), "label": LABEL})
    other = {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["dog", "cat"])}
    (write(root, "a/c", texts(), other) / "test.parquet").rename(folder / "test.parquet")
    with pytest.raises(ValueError, match="do not belong together.*cat, dog.*dog, cat"):
        load_dataset("a/b")
    write(root, "a/d", texts() | {"label": [0, 1, 2] * 4})
    (root / "a/c/train.parquet").unlink()
    write(root, "a/e", texts())
    (root / "a/e/test.parquet").rename(root / "a/d/test.parquet")
    with pytest.raises(ValueError, match="no sample is left of class 2 in the test set"):
        load_dataset("a/d")


def test_texts_that_are_all_empty(root):
    write(root, "a/b", {"text": ["", " ", None]}, {"text": datasets.Value("string")})
    with pytest.raises(ValueError, match='column "text" of data set "a/b" holds no text'):
        load_texts("a/b")


# Lines -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line, message",
    [
        ("null", "line 1 of .*train.jsonl is no JSON object"),
        ("[1, 2]", "line 1 .*it holds .*1, 2.*expected one object a line"),
        ('{"text": "\\ud800", "label": 0}', "line 1 .* is no JSON object"),
        ('{"text": 5, "label": 0}', "train.jsonl cannot be read as jsonl .*of one type"),
        ('{"text": ' + "[" * 900 + "]" * 900 + "}", "train.jsonl"),
    ],
)
def test_lines_that_are_no_rows(root, line, message):
    write_lines(root, "a/b", [line, '{"text": "a", "label": 1}'])
    for read in (load_dataset, load_texts):
        with pytest.raises(ValueError, match=message):
            read("a/b")


def test_lines_end_where_json_says_so(root):
    """Letters that Python takes for the end of a line may stand within a text."""
    rows = [{"text": f"one\u2028two\x85three {i}", "label": i % 2} for i in range(12)]
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    write_lines(root, "a/b", ["\ufeff" + lines[0], "", *lines[1:]])
    assert load_texts("a/b") == [row["text"] for row in rows]
    path = root / "rows.jsonl"
    path.write_text('{"instruction": "a\u2028b", "output": "c", "more": 1}\n', encoding="utf-8")
    assert load_instructions(str(path)) == [{"instruction": "a\u2028b", "input": "", "output": "c"}]


def test_columns_that_later_lines_bring(root):
    write_lines(root, "a/b", ['{"id": 1}', '{"id": 2, "text": "a"}'])
    assert load_texts("a/b") == ["a"]


def test_instructions_lie_where_the_program_was_started(root, monkeypatch, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/rows.jsonl").write_text('{"instruction": "a", "output": "b"}\n')
    monkeypatch.setenv("SYMGEN_FROM", str(tmp_path / "mine"))
    row = {"instruction": "a", "input": "", "output": "b"}
    assert load_instructions("./rows.jsonl") == load_instructions("rows.jsonl") == [row]


def test_a_tokenizer_that_knows_no_word_is_refused(tmp_path):
    transformers = pytest.importorskip("transformers")
    transformers.BertConfig(vocab_size=50).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"knows no word.*tokenizer\.save_pretrained"):
        load_tokenizer(str(tmp_path), [])


def test_instructions_that_are_no_texts(root):
    path = root / "rows.jsonl"
    path.write_text('{"instruction": "a", "output": "b"}\n{"instruction": "a", "output": [1]}\n')
    with pytest.raises(ValueError, match=r"row 2 of .*rows.jsonl has \[1\] as output"):
        load_instructions(str(path))
    path.write_text('{"question": "a", "answer": "b"}\n')
    told = (
        r"row 1 of .*rows.jsonl has question, answer; expected texts named instruction and output"
    )
    with pytest.raises(ValueError, match=told):
        load_instructions(str(path))
    write(root, "a/b", {"instruction": ["a"], "output": [3]})
    with pytest.raises(ValueError, match="has the columns of text instruction; expected"):
        load_instructions("a/b")
    with pytest.raises(ValueError, match=r"row 0 has \['instruction', 'output'\]; expected texts"):
        instructions_of([{"instruction": "a", "output": 3}], None)


# Images ----------------------------------------------------------------------------------------


def test_no_path_in_a_file_is_opened(root, monkeypatch):
    real = root / "private.png"
    real.write_bytes(picture())
    path = {"bytes": None, "path": str(real)}
    images = [{"bytes": picture(seed=i), "path": f"{i}.png"} for i in range(7)]
    features = {"image": datasets.Image(), "label": LABEL}
    folder = write(root, "a/b", {"image": [*images, images[0]], "label": [0, 1] * 4}, features)
    load_dataset("a/b")
    for file in folder.iterdir():
        table = pq.read_table(file)
        rows = table.to_pylist()
        rows[7]["image"] = path
        pq.write_table(type(table).from_pylist(rows, schema=table.schema), file)
    with pytest.raises(ValueError, match=r"row 7 .*names a file .*no such file"):
        load_dataset("a/b")
    write(root, "a/c", {"instruction": ["a"], "output": ["b"], "input": [str(real)]},
          {"instruction": datasets.Value("string"), "output": datasets.Value("string"),
           "input": datasets.Image()})  # fmt: skip
    assert load_instructions("a/c") == [{"instruction": "a", "input": "", "output": "b"}]


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(
        ">I", zlib.crc32(kind + content)
    )  # fmt: skip


def header(side: int) -> bytes:
    """The beginning of a PNG file that claims to be very large."""
    size = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def several(kind: str) -> bytes:
    file = io.BytesIO()
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    frames[0].save(file, kind, save_all=True, append_images=frames[1:])
    return file.getvalue()


def encoded(image: Image.Image, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


@pytest.mark.parametrize(
    "raw, message",
    [
        (header(9000), "9000 x 9000 pixels are more than"),
        (header(40_000), "no usable image: .*decompression bomb"),
        (several("GIF"), "animated"),
        (several("PNG"), "animated"),
        (several("TIFF"), "several pictures"),
        (encoded(Image.fromarray(np.full((8, 8), 40_000, np.uint16))), "more than 8 bits"),
        (encoded(Image.new("F", (8, 8), 0.5), "TIFF"), "more than 8 bits"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n", "no file of PNG"),
    ],
    ids=["large", "bomb", "gif", "apng", "tiff", "16 bit", "float", "postscript"],
)
def test_images_of_a_kind_that_is_not_read(raw, message):
    with pytest.raises(ValueError, match=message):
        decode(raw)


def test_images_of_every_usual_mode():
    palette = Image.new("P", (8, 8), 1)
    palette.putpalette([0, 0, 0, 255, 0, 0])
    file = io.BytesIO()
    palette.save(file, "PNG", transparency=b"\x00\xff")
    assert decode(file.getvalue()).getpixel((0, 0)) == (255, 0, 0)
    modes = [("JPEG", "CMYK"), ("PNG", "1"), ("PNG", "LA"), ("PNG", "RGBA"), ("JPEG", "L"),
             ("GIF", "P"), ("TIFF", "CMYK")]  # fmt: skip
    if int(PIL.__version__.split(".")[0]) >= 13:  # before, Pillow cannot read what it wrote
        modes += [("TIFF", "YCbCr")]
    for kind, mode in modes:
        assert decode(picture(kind, mode)).mode == "RGB"
    # As cameras write it: the photograph, and a preview behind it.
    assert decode(several("MPO")).getpixel((0, 0))[0] > 200
    with pytest.raises(ValueError, match="bounding box begins at 9, 0, outside"):
        decode(picture(), np.array([9.0, 0.0, 3.0, 3.0]))


def test_an_image_that_is_missing_is_skipped_and_named(root):
    images = [{"bytes": picture(seed=i), "path": None} for i in range(400)]
    images[17] = None
    features = {"image": datasets.Image(), "label": LABEL}
    write(root, "a/b", {"image": images, "label": [0, 1] * 200}, features)
    with pytest.warns(UserWarning, match=r"train 17.*of the first: no usable image"):
        data = load_dataset("a/b")
    assert sum(len(data.part(name)) for name in ("target", "baseline")) == 399


# Lists and names -------------------------------------------------------------------------------


def test_a_list_of_sums_that_is_none(root):
    write(root, "a/b", texts())
    listed = root / "SHA256SUMS"
    listed.write_text("# of the mirror\n\n0123  a/b/train.parquet\n")
    with pytest.raises(ValueError, match=r"line 3 of .*SHA256SUMS is '0123 .*expected 64 hex"):
        load_texts("a/b")


def test_a_tokenizer_with_other_tokens_than_it_gives(root):
    path, read = tokenizer_file(root)
    said = json.loads(path.read_text())
    said["post_processor"]["special_tokens"]["[CLS]"]["ids"] = [10**6]
    path.write_text(json.dumps(said))
    with pytest.raises(ValueError, match='the tokenizer "a/b" cannot .*has \\d+ tokens, and gives'):
        read()
    said["post_processor"]["special_tokens"] = {}
    path.write_text(json.dumps(said))
    with pytest.raises(ValueError, match="a/b"):
        read()


@pytest.mark.parametrize("name, meant", [("digitz", "digits"), ("planted-sentment", "planted-sen")])
def test_an_unknown_name_is_answered_before_anything_is_read(monkeypatch, name, meant):
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: pytest.fail("asked the hub"))
    for read in (load_dataset, load_texts):
        with pytest.raises(ValueError, match=rf'unknown data set "{name}".*Did you mean "{meant}'):
            read(name)
    with pytest.raises(ValueError, match='unknown data set "nosuch"; known are digits'):
        load_dataset("nosuch")


def test_without_the_hub_the_nearest_name_is_told(monkeypatch):
    def unreachable(*_, **__):
        raise ConnectionError("couldn't reach the hub")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(FileNotFoundError, match=r'Did you mean "uoft-cs/cifar10"'):
        load_dataset("uoft-cs/cifar-10")
