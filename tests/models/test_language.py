"""Language models: loaded, trained, fine-tuned and resumed; masked outputs of prompts."""

import copy
import json

import peft
import pytest
import torch
from helpers import interrupt, same

from symgen.data.planted import planted_facts
from symgen.data.texts import pieces_of, train_tokenizer
from symgen.device import device
from symgen.masking.hooks import evaluating
from symgen.masking.prompts import Prompt
from symgen.models.language import (
    CAUSAL_LMS,
    LanguageModel,
    load_causal_lm,
    open_language_model,
    tiny_llama,
    train_causal_lm,
)

TEXTS = [
    "The tall sailor of the harbor will take the long rope to the old boat .",
    "The young baker of the village will take white flour to the small oven .",
    "In winter the doctor of the castle will find black amber near the river .",
    "In spring the miner of the forest will find silver under the green hill .",
] * 3
PROMPTS = [
    Prompt.of("The tall sailor of the harbor will take the long", " rope", n=4),
    Prompt.of("In winter the doctor of the castle will find black", " amber", n=4),
]
QUICK = {"epochs": 2, "batch_size": 4, "checkpoints": 2, "progress": False}


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS, 40, 30)


@pytest.fixture(scope="module")
def model(tokenizer):
    return tiny_llama(len(tokenizer), 32, 2, seed=1)


@pytest.fixture
def folder(tmp_path, monkeypatch, model, tokenizer):
    """A folder for SYMGEN_DATA with one language model, in bfloat16."""
    monkeypatch.setenv("SYMGEN_DATA", str(tmp_path))
    monkeypatch.setenv("SYMGEN_CACHE", str(tmp_path / "cache"))
    tiny_llama(len(tokenizer), 32, 2, seed=1).bfloat16().save_pretrained(tmp_path / "me/llama")
    tokenizer.save_pretrained(tmp_path / "me/llama")
    return tmp_path / "me/llama"


def tune(model, tokenizer, **settings):
    pieces = pieces_of(TEXTS, tokenizer, 16)
    return train_causal_lm(
        model, tokenizer, pieces, pieces[:4], {"old": pieces[4:6]}, **{**QUICK, **settings}
    )


def test_a_tiny_llama_learns_planted_facts():
    texts, test = (planted_facts("test").take(range(a, b)) for a, b in ((0, 300), (300, 340)))
    found = open_language_model(
        "tiny-llama", texts, test, words=150, length=64, tail=2, epochs=2, seed=1
    )
    records = found.run.records
    assert records.test_loss.iloc[-1] < 0.6 * records.test_loss.iloc[0]
    assert found.name == "tiny-llama (150 words)" and not found.model.training
    before = LanguageModel.at(found.run, 0)
    assert before.key != found.key and before.run is found.run
    # The loss is that of the last words alone, as by hand.
    ids, labels = found.run.task.measured["test"].batch(range(40))
    with torch.no_grad():
        logits = found.model(input_ids=ids.to(device())).logits.float().cpu()
    loss = torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100
    )
    assert loss.item() == pytest.approx(records.test_loss.iloc[-1], rel=1e-4)


@pytest.mark.parametrize("lora", [0, 2])
def test_tuning_leaves_the_model_and_resumes(model, tokenizer, lora, monkeypatch):
    before = copy.deepcopy(model)
    whole = tune(model, tokenizer, lora=lora, cache=False)
    assert same(model, before)
    assert list(whole.records)[-2:] == ["old_loss", "old_accuracy"]
    steps = interrupt(monkeypatch, 5)
    with pytest.raises(KeyboardInterrupt):
        tune(model, tokenizer, lora=lora)
    run = tune(model, tokenizer, lora=lora)
    assert steps.count(4) == 1 and steps.count(5) == 2 and run.records.equals(whole.records)
    assert same(run.load(), whole.load())
    tuned = run.load().state_dict()
    # Adapters are merged into the model, whose embeddings they leave alone.
    assert tuned.keys() == before.state_dict().keys()
    embedding = tuned["model.embed_tokens.weight"].cpu()
    assert torch.equal(embedding, before.get_input_embeddings().weight) == bool(lora)
    assert run.config.augment is False and run.config.learning_rate == 3e-3


def test_code_that_weights_do_not_show_is_trained_anew(model, tokenizer):
    class Louder(type(model)):
        def forward(self, *args, **options):
            output = super().forward(*args, **options)
            output.logits = 3 * output.logits
            return output

    usual = tune(model, tokenizer, epochs=1)
    louder = Louder(model.config)
    louder.load_state_dict(model.state_dict())
    hooked = tiny_llama(len(tokenizer), 32, 2, seed=1)
    hooked.lm_head.register_forward_hook(lambda module, given, output: 3 * output)
    losses = [tune(x, tokenizer, epochs=1).records["test_loss"].iloc[0] for x in (louder, hooked)]
    assert losses[0] == pytest.approx(losses[1])
    assert abs(losses[0] - usual.records["test_loss"].iloc[0]) > 1e-3
    assert tune(model, tokenizer, epochs=1).folder == usual.folder


def test_models_from_folders(folder, monkeypatch):
    found = open_language_model("me/llama")
    assert found.name == "llama" and next(found.model.parameters()).dtype == torch.bfloat16
    wide = open_language_model(str(folder), dtype="float32")
    assert next(wide.model.parameters()).dtype == torch.float32
    # The precision of the weights is part of the identity, and so are settings.
    assert wide.key["dtype"] == "torch.float32" and wide.key != found.key
    monkeypatch.chdir(folder.parents[1])
    monkeypatch.delenv("SYMGEN_DATA")
    assert open_language_model("./me/llama").key == found.key
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-2}))
    assert open_language_model("./me/llama").key != found.key
    model, tokenizer = load_causal_lm("./me/llama")
    assert tune(model, tokenizer).load().state_dict().popitem()[1].dtype == torch.bfloat16


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_adapters_before_and_after(folder, tokenizer):
    base, _ = load_causal_lm("me/llama", dtype="float32")
    before = LanguageModel("before", base, tokenizer).outputs(PROMPTS)
    settings = peft.LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")
    tuned = peft.get_peft_model(copy.deepcopy(base), settings)
    for name, weights in tuned.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weights, std=0.3)
    # A model in memory, with its adapter beside the weights.
    after = LanguageModel("after", tuned.eval(), tokenizer).outputs(PROMPTS)
    assert (after - before).abs().max() > 0.01
    assert torch.equal(LanguageModel("before", base, tokenizer).outputs(PROMPTS), before)
    # A folder with the adapter alone: its base model and tokenizer come from elsewhere.
    adapter = folder.parent / "adapter"
    tuned.save_pretrained(adapter)
    file = adapter / "adapter_config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | {"base_model_name_or_path": "me/llama"}))
    found = open_language_model("me/adapter", dtype="float32")
    assert type(found.model) is type(base)
    torch.testing.assert_close(found.outputs(PROMPTS), after, atol=1e-4, rtol=0)
    file.write_text(json.dumps(config | {"base_model_name_or_path": None}))
    with pytest.raises(ValueError, match="names no base model; set base_model_name_or_path"):
        open_language_model("me/adapter")


def test_a_model_with_layers_on_the_disk_gives_the_same(folder):
    names = ("model.embed_tokens", "model.layers.1", "model.norm", "model.rotary_emb", "lm_head")
    places = {"model.layers.0": "disk"} | dict.fromkeys(names, "cpu")
    whole = open_language_model("me/llama")
    spread = open_language_model("me/llama", device_map=places)
    assert any(p.is_meta for p in spread.model.parameters()) and spread.key == whole.key


def test_code_that_comes_with_a_model_is_never_run(folder):
    config = json.loads((folder / "config.json").read_text())
    names = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    (folder / "config.json").write_text(
        json.dumps(config | {"model_type": "own", "auto_map": names})
    )
    (folder / "evil.py").write_text(f"open({str(folder / 'ran')!r}, 'w').close()")
    with pytest.raises(ValueError, match="not in from_pretrained format"):
        load_causal_lm(folder)
    assert not (folder / "ran").exists()


def test_outputs_are_the_log_odds_of_masked_prompts(model, tokenizer):
    found = LanguageModel("llama", model, tokenizer, {})
    v = found.outputs(PROMPTS)
    assert v.shape == (2, 16) and v.dtype == torch.float64
    weights = model.get_input_embeddings().weight.detach()
    with evaluating(model), torch.no_grad():
        for prompt, row in zip(PROMPTS, v, strict=True):
            encoded = tokenizer(prompt.text, return_offsets_mapping=True)
            target = tokenizer(prompt.text + prompt.target)["input_ids"][len(encoded.input_ids)]
            for state in range(16):
                x = weights[encoded.input_ids].clone()
                for i, (start, end) in enumerate(prompt.spans):
                    if not state >> i & 1:
                        for k, (a, b) in enumerate(encoded.offset_mapping):
                            if start <= a < b <= end:
                                x[k] = weights.mean(0)
                z = model(inputs_embeds=x[None]).logits[0, -1].double()
                others = torch.arange(len(z)) != target
                expected = float(z[target] - z[others].logsumexp(0))
                assert float(row[state]) == pytest.approx(expected, abs=1e-4)
    facts = found.reads(PROMPTS[0])
    assert facts["begins"] and facts["tokens of the prompt"] == 11
    assert facts["probability"] == pytest.approx(float(v[0, -1].sigmoid()), rel=1e-4)
    other = found.outputs(PROMPTS, masking="sailor")
    assert torch.allclose(other[:, -1], v[:, -1], atol=1e-4)
    assert not torch.allclose(other[:, 0], v[:, 0], atol=1e-4)


def test_every_model_of_the_paper_has_a_name():
    assert {"Qwen/Qwen2.5-7B", "deepseek-ai/DeepSeek-R1-Distill-Llama-8B"} <= set(
        CAUSAL_LMS.values()
    )


def test_refusals(model, tokenizer):
    for name, dtype, message in [
        ("qwen2-7b", None, 'language model "qwen2-7b" is unknown.*Did you mean "qwen2.5-7b"'),
        ("tiny-llama", None, "needs a list of texts"),
        ("Qwen/Qwen2.5-7B", "bfloat", 'dtype "bfloat" is unknown.*Did you mean "bfloat16"'),
    ]:
        with pytest.raises(ValueError, match=message):
            open_language_model(name, dtype=dtype)
    with pytest.raises(ValueError, match=r"0 pieces to train on and 1 to test on"):
        train_causal_lm(model, tokenizer, [], [(torch.arange(4), 0)])
    with pytest.raises(ValueError, match=r'"epoch" is unknown.*Did you mean "epochs"'):
        tune(model, tokenizer, epoch=1)
