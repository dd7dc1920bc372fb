"""What a run will take: what is counted, what is scaled, what is free, and who is asked."""

import re

import nbformat
import pytest
import torch
from conftest import ROOT, small_chapter
from test_cli import loaded_by, symgen

from symgen.book import bills, notebooks, presets, runs, work
from symgen.book.bills import Bill
from symgen.data.images import ImagePart
from symgen.files import cache_folder
from symgen.method import trainings
from symgen.models import language, speed
from symgen.models.loop import Loop
from symgen.models.registry import build_network, device
from symgen.split import design

SMALL = {
    "dataset": "digits", "network": "cnn", "train_size": 60, "epochs": 4, "samples": 2, "n": 3,
    "checkpoints": 2, "baselines": 1, "seed": 3,
}  # fmt: skip
EVEN = speed.Speed(speed.Rate(1.0, 0.0), speed.Rate(0.0, 0.0), 0.0)


def all_of(chapter, preset="quick", **given):
    defaults = presets.defaults(presets.read_chapter(ROOT, chapter))
    return {**defaults, **presets.resolve(ROOT, chapter, preset, given)}


def test_every_study_of_a_chapter_is_counted_with_its_own_trainings():
    chapter = "02_order_generalization"
    found = work.pieces(chapter, all_of(chapter, seeds=5, side_seeds=2))
    assert [(p.study["network"], p.trainings, p.networks) for p in found] == [
        ("cnn", 5, 3), ("bert-micro", 2, 3), ("bert-micro", 2, 3),
    ]  # fmt: skip
    assert [p.study["train_size"] for p in found] == [300, 500, 500]
    (checkpoints,) = {p.study["checkpoints"] for p in found}
    # Networks that know nothing are asked for in the main study alone.
    assert [p.extracted for p in found] == [checkpoints + 2 + 8, *2 * [checkpoints + 2 + 4]]


def test_every_comparison_has_trainings_of_its_own_number():
    given = {
        "seeds": 5,
        "side_seeds": 2,
        "comparison_seeds": 4,
        "others": [{"network": "resnet20"}],
    }
    found = work.pieces("04_loss_gap_removal", all_of("04_loss_gap_removal", **given))
    assert [p.trainings for p in found] == [5, 4, 4, 4, 2]


def test_a_map_of_trainings_has_one_piece_a_cell():
    given = {"amounts": [[50, 9], [70, 3]], "label_noises": [0.0], "widths": [2, 4], "seeds": 3}
    found = work.pieces("when", {**all_of("when"), **given})
    assert [(p.size, p.study["epochs"], p.study["options"]["width"]) for p in found] == [
        (50, 9, 2), (50, 9, 4), (70, 3, 2), (70, 3, 4),
    ]  # fmt: skip
    assert {p.trainings for p in found} == {3}
    # No two trainings of the map have a seed in common, 10 apart as they are.
    assert [p.study["seed"] for p in found] == [0, 30, 60, 90]


def test_of_chapters_side_by_side_one_makes_trainings_and_the_others_find_them_stored():
    first, second = "02_order_generalization", "03_three_phase_dynamics"
    names = ["00_planted_logic", first, second, "when", "where_phases_end", "A_sparsity_conditions"]
    chapters = {name: all_of(name) for name in names}
    assert work.makers_first(chapters) == [
        "00_planted_logic", first, "when", "A_sparsity_conditions", second, "where_phases_end",
    ]  # fmt: skip
    alone = all_of(second, seed=7)
    assert work.makers_first({first: chapters[first], second: alone, "when": chapters["when"]}) == [
        first, second, "when",
    ]  # fmt: skip


def test_all_samples_there_are_are_dealt_to_the_networks():
    chapter = "networks"
    (piece, *_) = work.pieces(chapter, {**all_of(chapter), "train_size": None, "baselines": 1})
    assert piece.size == sum(bills.DATASETS["digits"].train) // 2


@pytest.mark.parametrize("preset", presets.preset_names(ROOT))
def test_every_chapter_that_trains_is_counted_at_every_preset(preset):
    for chapter in presets.chapter_names(ROOT):
        parameters = all_of(chapter, preset)
        own = {"attributions", "your_own_network", "paper_vs_here"}
        assert bool(work.pieces(chapter, parameters)) == (
            "network" in parameters and chapter not in own
        )
        for piece in work.pieces(chapter, parameters):
            assert piece.trainings >= 1 and piece.size >= 1 and piece.study["epochs"] >= 1


@pytest.mark.parametrize("chapter", presets.chapter_names(ROOT))
def test_what_a_chapter_asks_for_besides_is_counted(chapter):
    cells = notebooks.own_code(presets.read_chapter(ROOT, chapter))
    asked = re.findall(r"also=\[(.*?)\]", "\n".join(cell.source for cell in cells))
    assert [tuple(re.findall(r"\w+", one)) for one in asked] == [
        work.ASKED[name] for name in [chapter] if name in work.ASKED
    ]


@pytest.mark.parametrize("chapter", ["where_phases_end", *work.ASKED])
def test_a_training_has_as_many_extractions_as_are_counted(chapter, splits):
    study = trainings.Study.of(SMALL)
    (piece, *_) = work.pieces(chapter, {**SMALL, "seeds": 1})
    assert list(bills._stored(piece).values()) == [False]
    trainings.measure(study, piece.also)
    assert len(splits) == piece.extracted
    # Stored now, so it costs nothing; one more seed does.
    assert list(bills._stored(piece._replace(trainings=2)).values()) == [True, False]
    stored = cache_folder() / "trainings"
    assert all((stored / f"{name}.safetensors").exists() for name in bills._stored(piece))


def test_trainings_are_spread_over_cores_shared_by_chapters_and_free_where_stored(monkeypatch):
    monkeypatch.setattr(speed, "measure_speed", lambda: EVEN)
    monkeypatch.setattr(bills, "_loading", lambda: 1.0)
    monkeypatch.setattr(speed.torch.cuda, "is_available", lambda: False)
    piece = work.Piece({**SMALL, "baselines": 0}, 4, 1, 0, True)
    monkeypatch.setattr(bills, "_stored", lambda p: {f"{k}": k == 3 for k in range(p.trainings)})
    # 60 samples in four epochs at a second each, three trainings that are not stored.
    rows = bills._timed({0: [piece], 1: [piece._replace(trainings=5)]}, cores=2)
    # Two at once, and then one; the other processes load the libraries, too.
    assert rows[0][0] == bills.LOADS + bills.OTHERS + 240 * 2
    assert rows[1][0] == bills.LOADS + 240 * 1
    assert "1 training is stored" in rows[0][-1] and "4 trainings" in rows[1][-1]
    one_core = bills._timed({0: [piece]}, cores=1)
    assert one_core[0][0] == bills.LOADS + 240 * 3 and one_core[0][2] < rows[0][2]


def test_a_network_of_ones_own_is_counted_and_one_that_is_not_there_refused(monkeypatch):
    monkeypatch.setattr(speed, "measure_speed", lambda: EVEN)
    monkeypatch.setattr(bills, "_loading", lambda: 1.0)

    def bill(network):
        given = presets.resolve(ROOT, "where_phases_end", "quick", {"network": network})
        return bills.bills(ROOT, [("where_phases_end", given, True)])[0]

    found = bill("torchvision.models:squeezenet1_1")
    assert found.seconds > 0 and found.basis == "timed here"
    for name, told in (("nomod:f", "no module nomod"), ("torchvision.models:none", "no 'none'")):
        with pytest.raises(presets.BookError, match=told):
            bill(name)
    monkeypatch.setattr(speed, "demand", lambda *_, **__: 1 / 0)
    found = bill("torchvision.models:squeezenet1_1")
    assert found.seconds is None and "cannot be counted" in found.basis


@pytest.mark.parametrize(
    "counts, told",
    [
        ({"cats": 40}, "at least 2 classes, got 1"),
        ({"cats": 4, "dogs": 9}, "fewer than 5 pictures of class cats"),
        ({"cats": 20, "dogs": 20}, "gives at most 16 in each"),
        ({"cats": 50, "dogs": 50}, ""),
    ],
)
def test_a_folder_that_holds_too_little_is_refused_before_hours_are_spent(
    monkeypatch, tmp_path, counts, told
):
    monkeypatch.setattr(speed, "measure_speed", lambda: EVEN)
    monkeypatch.setattr(bills, "_loading", lambda: 1.0)
    for name, count in counts.items():
        (tmp_path / name).mkdir()
        for k in range(count):
            (tmp_path / name / f"{k:02}.png").touch()  # none is read yet
    given = {"dataset": str(tmp_path), "train_size": 20}
    given = presets.resolve(ROOT, "01_interaction_extraction", "quick", given)
    wanted = [("01_interaction_extraction", given, True)]
    if not told:
        assert bills.bills(ROOT, wanted)[0].seconds > 0
        return
    with pytest.raises(presets.BookError, match=told):
        bills.bills(ROOT, wanted)


def stored(book, seconds, parameters):
    chapter = small_chapter("a_first")
    known = {"fingerprint": "x", "preset": "quick", "seconds": seconds, "parameters": parameters}
    chapter.metadata["symgen"] = {**known, "memory": {"host": 512}}
    nbformat.write(chapter, book / "chapters/a_first.ipynb")


def bill_of(book, **given):
    return bills.bills(book, [("a_first", presets.resolve(book, "a_first", "quick", given), True)])


def test_other_chapters_are_scaled_from_their_stored_execution(book):
    assert bill_of(book)[0].seconds is None
    stored(book, 30.0, {})
    (row,) = bill_of(book, rate=0.5)
    assert (row.seconds, row.host, row.basis) == (30.0, 512 * 2**20, "its stored execution")
    (row,) = bill_of(book, n=5)  # for 3
    assert (row.seconds, row.basis) == (120.0, "stored 30 s x 4 (n), at most")
    assert bill_of(book, dataset="other")[0].basis == "not known: another dataset"
    stored(book, 30.0, {"n": 4})
    assert bill_of(book)[0].seconds == 15.0


def test_nothing_is_timed_for_a_run_that_stored_pages_show_to_be_short(monkeypatch):
    def measure():
        raise AssertionError("timed")

    monkeypatch.setattr(speed, "measure_speed", measure)
    wanted = [("C_similarity_metric", all_of("C_similarity_metric"), True)]
    assert bills.before_run(ROOT, wanted) == []
    for ask in (
        lambda: bills.before_run(ROOT, wanted, dry_run=True),
        lambda: bills.bills(ROOT, wanted),
    ):
        with pytest.raises(AssertionError, match="timed"):
            ask()


@pytest.mark.parametrize("command", ["run", "sweep"])
def test_a_command_asks_for_what_is_due_before_a_run(book, monkeypatch, command):
    (book / "grid.yml").write_text("chapter: a_first\ngrid: {n: [2, 3]}\n")
    stored(book, 1.0, {})
    monkeypatch.setattr(bills, "bills", lambda *_: [Bill("a_first", 7200.0, *4 * [0.0])])
    monkeypatch.setattr(runs, "execute", lambda *_: runs.Outcome("done", book, "done"))
    words = ["grid.yml"] if command == "sweep" else ["a_first"]
    assert "2.00" in symgen(command, *words, "--dry-run").output
    if command == "run":
        assert "2.00" not in symgen(command, *words).output


@pytest.mark.parametrize(
    ("seconds", "given", "short"),
    [
        (30.0, {}, True),
        (130.0, {}, False),  # five times that are eleven minutes
        (30.0, {"n": 4}, True),
        (30.0, {"n": 6}, False),  # eight times as many states
        (1.0, {"n": 6}, False),  # trainings may have been stored at the time
        (30.0, {"rate": 0.5}, False),  # by which nobody knows how much grows
        (30.0, {"dataset": "other"}, False),
    ],
)
def test_a_run_is_taken_for_short_only_where_stored_pages_show_it(book, seconds, given, short):
    wanted = [("a_first", given, True)]
    assert not bills.is_short(book, wanted)  # nothing is stored
    stored(book, seconds, {})
    assert bills.is_short(book, wanted) == short


def test_chapters_that_are_short_alone_may_be_long_together(book):
    stored(book, 30.0, {})
    one, kept = ("a_first", {}, True), ("a_first", {}, False)
    assert bills.is_short(book, [one, one]) and not bills.is_short(book, [one] * 3)
    assert bills.is_short(book, [one, *[kept] * 9])


def test_chapters_start_at_once_at_preset_quick_where_their_pages_took_two_minutes_at_most():
    for name in presets.chapter_names(ROOT):
        wanted = [(name, presets.resolve(ROOT, name, "quick", {}), True)]
        seconds = presets.read_chapter(ROOT, name).metadata["symgen"]["seconds"]
        assert bills.is_short(ROOT, wanted) == (seconds <= 120), name
    resolved = presets.resolve(ROOT, "04_loss_gap_removal", "cpu", {})
    assert not bills.is_short(ROOT, [("04_loss_gap_removal", resolved, True)])


def test_every_study_of_the_penalty_is_billed_its_own_number_of_trainings():
    given = {"seeds": 5, "side_seeds": 2, "strengths": [0.1], "decays": [0.1]}
    further = [{"network": "resnet20"}]
    found = work.pieces("E_penalty", all_of("E_penalty", **given, others=further))
    assert [piece.trainings for piece in found] == [5, 4 * 5 + 2, 2, 4 * 2 + 2]


def test_the_published_procedure_is_counted_for_each_training_one_after_the_other(monkeypatch):
    given = {"seeds": 3, "looks": 4, "samples": 5, "functions": 6, "levels": [0.0, 0.1], "steps": 7}
    found = work.pieces("extractor", {**all_of("extractor"), **given})
    assert [(p.trainings, p.networks, p.extracted) for p in found] == [(1, 3, 4 + 2)] * 3
    # Three rates on six functions of two sizes with two kinds of noise, and on outputs twice.
    assert sum(p.descended for p in found) == 3 * 7 * (6 * 2 * 2 + 2 * 3 * 5 * 6)
    rate = speed.Rate(0.0, 0.0)
    timed = speed.Speed(rate, rate, 0.0, 2.0)
    monkeypatch.setattr(speed, "measure_speed", lambda: timed)
    monkeypatch.setattr(bills, "_loading", lambda: 0.0)
    rows = bills._timed({0: found}, cores=2)
    n = found[0].study["n"]
    assert rows[0][0] == pytest.approx(sum(p.descended for p in found) * timed.steps(n))


def test_programs_on_sampled_states_are_counted_by_states_and_candidates(monkeypatch):
    chapter = "more_variables"
    given = {"n": 6, "many": 8, "max_order": 2, "counts": [8, 12], "samples": 3, "few": 2}
    (piece,) = work.pieces(chapter, all_of(chapter, **given, calls=20, against=["SPEX"]))
    assert (piece.trainings, piece.networks, piece.peers) == (1, 1, 2)
    # ANDs and ORs of one or two of so many variables, which are the same for one.
    few, many = (2 * (n + n * (n - 1) / 2) - n for n in (6, 8))
    for n, count in ((6, few), (8, many)):
        assert len(design.candidates(n, 2)[0]) == count
    assert piece.sampled == 3 * (8**2 + 12**2) * few + 2 * 2 * 20**2 * many
    rate = speed.Rate(0.0, 0.0)
    timed = speed.Speed(rate, rate, 0.5, sampled=2.0)
    monkeypatch.setattr(speed, "measure_speed", lambda: timed)
    monkeypatch.setattr(bills, "_loading", lambda: 0.0)
    split = 2 * 3 * timed.splits(6) + 2 * timed.splits(14)
    assert bills._timed({0: [piece]}, cores=2)[0][0] == pytest.approx(2.0 * piece.sampled + split)


def test_language_models_are_counted_by_their_texts_and_prompts():
    asked = []

    def texts(name):
        asked.append(name)
        return 100

    given = all_of("05_llm_interactions", samples=12, epochs=3, maskings=["mean", "corpus", "_"])
    found = work.spoken("05_llm_interactions", given, texts)
    tiny = "tiny-llama"
    # Each measures two kinds of texts before its training and after it.
    assert found == [
        work.Spoken(tiny, 300, 12 + 20, beside=2, measured=400),
        work.Spoken(tiny, 300, 12, beside=2, measured=400),
    ]  # fmt: skip
    assert work.spoken("05_llm_interactions", {**given, "prompt": "a"}, texts)[0].masked == 1 + 2
    loaded = {**given, "model": "stories260k", "train_size": 7}
    alone = work.spoken("05_llm_interactions", loaded, texts)
    assert [(s.trained, s.beside) for s in alone] == [(0, 1), (21, 1)]
    assert set(asked) == {"planted-facts"}
    given = all_of("06_fine_tuning", samples=4, seeds=2, epochs=3, tune_size=50, tune_epochs=2,
                   checkpoints=5, further=["planted-facts"])  # fmt: skip
    model, baseline = work.spoken("06_fine_tuning", given, texts)
    # Two models of each seed; of each domain and seed a tuning and its twin.
    measured = 2 * 400 + 3 * 100 * 2 * 4 * 7  # a tuning measures three kinds at each of 7 looks
    assert model == work.Spoken(
        tiny, 2 * 300 + 2 * 2 * 2 * 100, 2 * 2 * 4 * 7, 2 * 2, 1, 2 * 4 * 7, measured
    )
    assert baseline == work.Spoken(tiny, 2 * 300, 2 * 2 * 4, 2 * 2, measured=2 * 400)
    assert language.TUNING.evaluation_size == work.MEASURED
    assert work.spoken("02_order_generalization", given, texts) == []


@pytest.mark.parametrize(
    ("kind", "shape", "inner"),
    [
        ("Llama", {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 80}, 80),
        ("GPT2", {"n_embd": 32, "n_layer": 2, "n_head": 2}, 128),
        ("GPT2", {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_inner": 80}, 80),
        ("OPT", {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
                 "ffn_dim": 80, "word_embed_proj_dim": 32}, 80),
        ("Bloom", {"hidden_size": 32, "n_layer": 2, "n_head": 2}, 128),
    ],
)  # fmt: skip
def test_a_model_of_any_family_has_a_bill(tmp_path, kind, shape, inner):
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=50, bos_token_id=0, eos_token_id=1, pad_token_id=0, **shape
    )
    config.save_pretrained(tmp_path)
    found = speed.token_demand(str(tmp_path))
    assert found.kept == 4 * (2 * (8 * 32 + 4 * inner) + 2 * 50)


def test_a_chapter_on_language_models_has_a_bill(monkeypatch):
    token = speed.Speech(speed.Rate(1.0, 0.0), speed.Rate(0.01, 0.0))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(speed, "measure_speech", lambda: token)
    monkeypatch.setattr(speed, "token_seconds", lambda *shape: lengths.append(shape[-1]) or 1.0)
    lengths = []
    monkeypatch.setattr(speed, "measure_speed", lambda: EVEN)
    monkeypatch.setattr(bills, "_loading", lambda: 0.0)
    monkeypatch.setattr(bills, "_texts", lambda name: (100, 20.0))

    def bill(**given):
        given = {"epochs": 1, "samples": 1, "maskings": ["mean"], "n": 3, **given}
        resolved = presets.resolve(ROOT, "05_llm_interactions", "quick", given)
        return bills.bills(ROOT, [("05_llm_interactions", resolved, True)], cores=1)[0]

    tree = speed.tree_tokens(15, 3)
    assert tree == 5 * (1 + 2 + 4 + 8)
    found = bill()
    looks = 4 * 100 * 20 / 3  # at two kinds of texts, before the training and after it
    assert found.seconds == pytest.approx(2 * (100 * 20 + looks + tree / 100))
    assert found.basis == "timed here" and found.host > bills.HOST and not found.device
    assert set(lengths) == {20}
    # A model that is loaded is not trained, and its configuration is known, or read.
    loaded = bill(model="qwen2.5-7b")
    assert loaded.seconds == pytest.approx(100 * 2 * 20 + looks + 2 * tree / 100)
    halved = bill(model="qwen2.5-7b", dtype="bfloat16")
    assert loaded.host > 7.6e9 * 4
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        there = bill(model="qwen2.5-7b")
    assert there.host == bills.HOST and there.device == loaded.host - bills.HOST
    assert halved.host == pytest.approx(loaded.host - 7.6e9 * 2, rel=0.01)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    unknown = bill(model="no/such-model")
    assert unknown.seconds is None and 'not known: model "no/such-model"' in unknown.basis

    def of_numbers(*shape, **options):
        raise RuntimeError("Tensor.item() cannot be called on meta tensors")

    monkeypatch.setattr(speed, "token_demand", of_numbers)
    assert (
        bill(model="no/such-model").basis
        == "not known: Tensor.item() cannot be called on meta tensors"
    )


@pytest.mark.parametrize(("seeds", "domains", "cores", "rounds"), [
    (1, 2, 2, 1), (4, 2, 1, 8), (4, 2, 2, 4), (3, 1, 2, 2), (4, 1, 4, 1), (3, 2, 4, 2),
])  # fmt: skip
def test_tunings_run_side_by_side(seeds, domains, cores, rounds, monkeypatch):
    """Those of all domains, as many as there are cores."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    rate = speed.Rate(0.0, 0.0)
    monkeypatch.setattr(speed, "measure_speech", lambda: speed.Speech(rate, rate))
    monkeypatch.setattr(speed, "token_seconds", lambda *shape: 1.0)
    monkeypatch.setattr(speed, "measure_speed", lambda: EVEN)
    monkeypatch.setattr(bills, "_loading", lambda: 0.0)
    monkeypatch.setattr(bills, "_texts", lambda name: (100, 20.0))

    def bill(cores, **given):
        further = ["roneneldan/TinyStories"] * (domains - 1)
        resolved = presets.resolve(ROOT, "06_fine_tuning", "quick", {"further": further, **given})
        return bills.bills(ROOT, [("06_fine_tuning", resolved, True)], cores=cores)[0]

    whole, found = (bill(count, seeds=seeds) for count in (1, cores))
    assert found.seconds == pytest.approx(whole.seconds * rounds / (seeds * domains))
    # Each of them in a process that has both models.
    assert found.host == pytest.approx(whole.host * min(cores, seeds * domains))


def test_models_of_a_chapter_are_trained_side_by_side(monkeypatch):
    """Two of them on two cores, and not on one, nor on a GPU; prompts are masked one by one."""
    rates = [speed.Rate(0.0, 0.0), speed.Rate(0.0, 0.0)]
    monkeypatch.setattr(speed, "measure_speech", lambda: speed.Speech(*rates))
    monkeypatch.setattr(speed, "token_seconds", lambda *shape: 1.0)
    monkeypatch.setattr(speed, "measure_speed", lambda: EVEN)
    monkeypatch.setattr(bills, "_loading", lambda: 0.0)
    monkeypatch.setattr(bills, "_texts", lambda name: (100, 20.0))

    def seconds(cores, gpu, epochs):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
        resolved = presets.resolve(ROOT, "05_llm_interactions", "quick", {"epochs": epochs})
        return bills.bills(ROOT, [("05_llm_interactions", resolved, True)], cores=cores)[0].seconds

    for many, gpu, share in ((1, False, 1), (2, False, 2), (8, False, 2), (8, True, 1)):
        epoch = seconds(many, gpu, 4) - seconds(many, gpu, 3)
        assert epoch == pytest.approx(2 * 100 * 20 / share)  # texts of both, and their tokens


def test_a_small_language_model_is_timed_by_itself_in_texts_of_its_length(monkeypatch):
    steps = []
    monkeypatch.setattr(speed, "_spoken_step", lambda model, tokens: steps.append((model, tokens)))
    speed.token_seconds.__wrapped__("tiny-llama", 32, 1, 50, 256)  # what is timed here is not kept
    (model, tokens), *_ = steps
    assert tokens.shape == (8, 256) and model.config.num_hidden_layers == 1


def test_samples_are_counted_where_they_are(monkeypatch, tmp_path):
    monkeypatch.setenv("SYMGEN_DATA", str(tmp_path))
    study = {"dataset": "a/b", "train_size": None}
    piece = work.Piece(study, 1, 3, 0, False)
    assert bills._size(piece) == piece.size == work.SOME
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/train.jsonl").write_text('{"text": "a", "label": 0}\n' * 30)
    assert bills._size(piece) == 10
    assert bills._size(piece._replace(study={**study, "train_size": 7})) == 7
    (tmp_path / "a/b/train.jsonl").write_text("no lines")
    assert bills._size(piece) == work.SOME


def test_the_machine_is_timed_once_for_all_chapters(monkeypatch):
    token, timed, read = speed.Speech(*[speed.Rate(0.0, 0.0)] * 2), [], []

    def once(name, found):
        return lambda: timed.append(name) or found

    monkeypatch.setattr(speed, "measure_speech", once("speech", token))
    monkeypatch.setattr(speed, "token_seconds", lambda *shape: 0.0)
    monkeypatch.setattr(speed, "measure_speed", once("speed", EVEN))
    monkeypatch.setattr(bills, "_loading", once("loading", 0.0))
    monkeypatch.setattr(bills, "_texts", lambda name: read.append(name) or (100, 20.0))
    names = ["05_llm_interactions", "06_fine_tuning", "where_phases_end"]
    wanted = [(name, presets.resolve(ROOT, name, "quick", {}), True) for name in names]
    assert [row.basis[:10] for row in bills.bills(ROOT, wanted)] == ["timed here"] * 3
    assert sorted(timed) == ["loading", "speech", "speed"]
    assert read == ["planted-facts"] * 2


def test_texts_are_counted_where_they_are(monkeypatch, tmp_path):
    count, tokens = bills._texts("planted-facts")
    assert 5000 < count < 7000 and 20 < tokens < 60
    monkeypatch.delenv("SYMGEN_DATA", raising=False)
    unknown = work.SOME, float("inf")
    assert bills._texts("no/such-texts") == unknown
    monkeypatch.setenv("SYMGEN_DATA", str(tmp_path))
    (tmp_path / "a/b").mkdir(parents=True)
    for lines in ('{"instruction": 1, "output": 2}\n', "no lines", ""):
        (tmp_path / "a/b/train.jsonl").write_text(lines)
        assert bills._texts("a/b") == unknown, lines


def test_what_is_unchanged_costs_nothing(book):
    stored(book, 3600.0, {})
    assert "1.00" in symgen("run", "a_first", "--dry-run").output
    runs.execute(book, "a_first", "quick", {}, book / "_build/runs/quick")
    told = symgen("run", "a_first", "--dry-run").output
    assert "unchanged since its last run" in told and "1.00" not in told
    assert "1.00" in symgen("run", "a_first", "--dry-run", "--force").output


def test_the_table_sums_hours_and_disk_and_has_the_most_memory():
    rows = [
        Bill("one", 3600.0, 2**30, 3 * 2**30, 0.0, "timed here"),
        Bill("another", 1800.0, 2**31, 2**30, 2**30, "timed here"),
        Bill("third", None, None, None, None, "not known"),
    ]
    *_, third, total = bills.table(rows).splitlines()
    assert third.split()[:5] == ["third", "?", "?", "?", "?"]
    assert total.split() == ["all", "1.50", "3.0", "3.0", "1.0", "1", "not", "known"]
    # Two at a time may be the largest two.
    *_, total = bills.table(rows, workers=2).splitlines()
    assert total.split()[:5] == ["all", "1.50", "3.0", "4.0", "1.0"]
    assert total.endswith("1 not known, 2 side by side")


@pytest.mark.parametrize(
    ("seconds", "terminal", "words", "answer", "shown", "runs_it"),
    [
        (599, True, [], None, False, True),
        (601, True, [], "n\n", True, False),
        (601, True, [], "y\n", True, True),
        (601, True, ["--yes"], None, True, True),
        (601, False, [], None, True, True),
        (601, True, ["--dry-run"], None, True, False),
        (1, True, ["--dry-run", "--yes"], None, True, False),
        (601, True, ["--billed"], None, False, True),
    ],
)
def test_a_long_run_is_shown_and_asked_about(
    book, monkeypatch, seconds, terminal, words, answer, shown, runs_it
):
    from click.testing import CliRunner

    from symgen.book import cli

    stored(book, float(seconds), {})
    ran = []
    outcome = runs.Outcome("done", book / "x.ipynb", "done")
    monkeypatch.setattr(runs, "execute", lambda *_: ran.append(1) or outcome)
    monkeypatch.setattr(bills, "on_terminal", lambda: terminal)
    result = CliRunner().invoke(cli.app, ["run", "a_first", *words], input=answer)
    assert ("hours" in result.output) == shown
    assert ("Start it?" in result.output) == (answer is not None)
    assert bool(ran) == runs_it
    assert result.exit_code == (answer == "n\n")


def test_the_bill_of_a_chapter_without_networks_loads_nothing_heavy():
    assert loaded_by("run", "00_planted_logic", "--dry-run", "--force") == (0, [])


def test_what_a_network_asks_is_counted_as_it_is():
    model = build_network("cnn", image_size=20)
    assert speed.demand("cnn", side=20).weights == sum(p.nbytes for p in model.parameters())
    # Convolutions and the linear layer scale with the number of pixels.
    few, many = (speed.demand("vgg11", side=side) for side in (32, 64))
    assert 3 < many.operations / few.operations < 4.1 and many.kept > 3 * few.kept
    text = speed.demand("bert-tiny", tokens=16, vocabulary=200)
    assert speed.demand("bert-tiny", tokens=32, vocabulary=200).operations > 1.9 * text.operations


def test_a_step_is_timed_with_all_that_a_training_does(monkeypatch):
    augment, step, cut, done = ImagePart.augment, Loop.step, [], []

    def seconds(do):
        if do.func is speed._step:
            do()
        return 1.0

    monkeypatch.setattr(ImagePart, "augment", lambda *given: cut.append(1) or augment(*given))
    monkeypatch.setattr(Loop, "step", lambda *given: done.append(given) or step(*given))
    monkeypatch.setattr(speed, "_seconds", seconds)
    monkeypatch.setattr(speed, "_outputs", lambda *given: torch.zeros(8, 2 ** given[-1]))
    speed.measure_speed()
    sizes = [len(x) for _, _, x, _ in done]
    assert len(cut) == 2 and sizes == [batch for _, _, batch, _ in speed.TIMED[device().type]]


def test_a_machine_is_timed_with_one_thread_and_left_as_it_was(monkeypatch):
    import torch

    threads, times, state = [], iter(range(1, 10)), torch.random.get_rng_state()

    def seconds(do):
        threads.append(torch.get_num_threads())
        return float(next(times))

    before = torch.get_num_threads()
    monkeypatch.setattr(speed, "device", lambda: torch.device("cpu"))
    monkeypatch.setattr(speed, "_seconds", seconds)
    monkeypatch.setattr(speed, "_outputs", lambda *given: torch.zeros(8, 2 ** given[-1]))
    found = speed.measure_speed()
    assert found.split == 3 / 8 and found.splits(8) == pytest.approx(2.4 * 3 / 8)
    # 8 samples 32 times, 20 steps.
    assert found.step == 6 / 5120 and found.steps(6) == pytest.approx(6 / 5120 / 2.4)
    # 300 states, and ANDs and ORs of up to 4 of 10 variables.
    assert found.sampled == pytest.approx(7 / 300**2 / len(design.candidates(10)[0]))
    assert found.train(speed.demand("resnet18").operations) == pytest.approx(4 / 8)
    assert torch.get_num_threads() == before and set(threads) == {1}
    assert torch.equal(state, torch.random.get_rng_state())
    # As on a GPU: 64 samples with 10 variables.
    times = iter(range(1, 10))
    monkeypatch.setitem(speed.SPLIT, "cpu", speed.SPLIT["cuda"])
    assert speed.measure_speed().splits(10) == pytest.approx(3 / 64)
