"""v on sampled states: that of all masked states, where these can be run, for every model."""

import numpy as np
import pytest
import torch
from second_device import second_device
from test_causal import PROMPTS, build, tokenizer  # noqa: F401
from test_outputs import Plain

import symgen
from symgen.masking.extraction import extract
from symgen.masking.hooks import Inputs
from symgen.masking.mask_values import mean_embedding, mean_feature, token_embedding
from symgen.masking.outputs import masked_outputs
from symgen.masking.patches import draw_patches
from symgen.masking.prompts import prompt_inputs
from symgen.masking.sampled import sampled_outputs
from symgen.masking.spans import TextVariables
from symgen.split.design import draw_states
from symgen.split.sampled import SampledInteractions

STATES = draw_states(4, 9, 1)


def images():
    torch.manual_seed(0)
    model, x = Plain().eval(), torch.rand(3, 3, 12, 12)
    return model, x, torch.tensor([0, 2, 1]), draw_patches(3, n=4, grid=3), mean_feature(model, x)


def bert():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, num_labels=3,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config).eval()
    x = {"input_ids": torch.randint(5, 50, (2, 9)), "attention_mask": torch.ones(2, 9).long()}
    x["attention_mask"][1, 7:] = 0
    variables = TextVariables((((1,), (2, 3), (4,), (6,)), ((1,), (2,), (3,), (5,))))
    return model, x, torch.tensor([0, 2]), variables, token_embedding(model, 3)


def table():
    weights = np.linspace(-1, 1, 12).reshape(4, 3)
    x = np.arange(8.0).reshape(2, 4)
    return lambda rows: rows**2 @ weights, x, [0, 2], np.arange(4)[None], x.mean(0)


@pytest.mark.parametrize("case", [images, bert, table])
@pytest.mark.parametrize("batch_size", [None, 4])
def test_sampled_states_have_the_outputs_that_they_have_among_all(case, batch_size):
    given = case()
    every = masked_outputs(*given, progress=False)
    some = sampled_outputs(*given, STATES, batch_size, progress=False)
    torch.testing.assert_close(some, every[:, STATES], atol=1e-5, rtol=1e-5)


def test_prompts_of_a_language_model(tokenizer):  # noqa: F811
    model = build("gpt2", tokenizer)
    inputs, variables = prompt_inputs(PROMPTS, tokenizer)
    given = model, inputs.x, inputs.y, variables, mean_embedding(model)
    every = masked_outputs(*given, progress=False)
    some = sampled_outputs(*given, STATES, progress=False)
    torch.testing.assert_close(some, every[:, STATES], atol=1e-4, rtol=1e-4)
    with pytest.raises(ValueError, match=r"cannot be left out; give a mask value"):
        sampled_outputs(*given[:-1], None, STATES, progress=False)
    with pytest.raises(ValueError, match="one target token"):
        longer = [[*tokens, 1] for tokens in inputs.y]
        sampled_outputs(model, inputs.x, longer, *given[3:], STATES, progress=False)


def test_extract_finds_among_twenty_variables_what_was_planted():
    """An AND of three and an OR of two of twenty numbers of a table, known by name."""

    def logits(x):
        v = 3.0 * (x[:, [0, 5, 9]] > 0).all(1) - 2.0 * (x[:, [3, 17]] > 0).any(1)
        return np.stack([-np.ones(len(x)), v - 1], 1)

    names = [f"a{i}" for i in range(20)]
    found = extract(
        logits, Inputs(np.ones((2, 20)), [1, 1]), np.arange(20)[None], 0.0,
        states=300, held_out=80, noise=0.01, max_order=3, names=names, key={"planted": 1},
        progress=False,
    )  # fmt: skip
    assert isinstance(found, SampledInteractions) and found.n == 20 and len(found.held_out) == 80
    shown = found.to_frame().groupby("sample").head(2)
    assert shown["members"].tolist() == ["a0, a5, a9", "a3, a17"] * 2
    assert shown["effect"].tolist() == pytest.approx([3, -2] * 2, abs=0.1)
    assert found.errors.mean() < 1e-3 and set(found.about) == {"model", "inputs"}
    again = extract(
        logits, Inputs(np.ones((2, 20)), [1, 1]), np.arange(20)[None], 0.0,
        states=300, held_out=80, noise=0.01, max_order=3, key={"planted": 1}, progress=False,
    )  # fmt: skip
    assert torch.equal(again.effects, found.effects) and again.names is None


def test_stored_outputs_are_those_of_the_same_states(tmp_path, monkeypatch):
    monkeypatch.setenv("SYMGEN_CACHE", str(tmp_path))
    model, *given = images()
    one = sampled_outputs(model, *given, STATES, key={"a": 1}, progress=False)
    two = sampled_outputs(model, *given, STATES[:5], key={"a": 1}, progress=False)
    assert torch.equal(one[:, :5], two)
    monkeypatch.setattr(model, "forward", None)  # what is stored needs no network
    assert torch.equal(one, sampled_outputs(model, *given, STATES, key={"a": 1}, progress=False))


@pytest.mark.parametrize("change", [{"y": [0, 1]}, {"x": 2}, {"variables": 2}])
def test_samples_that_do_not_fit_together_are_refused(change):
    model, x, y, variables, value = images()
    x, variables = x[: change.get("x", 3)], variables[: change.get("variables", 3)]
    y = torch.tensor(change.get("y", y.tolist()))
    with pytest.raises(ValueError, match="they must be the same, one or more"):
        sampled_outputs(model, x, y, variables, value, STATES, progress=False)


def test_outputs_that_are_no_numbers_name_the_sample_and_the_state():
    def broken(x):
        v = torch.where((x == 1).all(1), 2.0, torch.where(x.sum(1) == 2, torch.nan, 0.5))
        return torch.stack([torch.zeros_like(v), v], 1)

    states = draw_states(4, 16)
    where = next(int(t) for t in states if int(t).bit_count() == 2)
    with pytest.raises(FloatingPointError, match=rf"sample 0: v is nan in masked state {where},"):
        sampled_outputs(broken, torch.ones(1, 4), [1], np.arange(4)[None], 0.0, states)


def test_a_network_that_is_random_is_found_out():
    model, *given = images()
    model.register_forward_hook(lambda module, x, y: y + torch.randn_like(y))
    with pytest.raises(RuntimeError, match="must be deterministic"):
        sampled_outputs(model, *given, STATES, progress=False)


def test_sampling_on_a_second_device():
    model, x, y, _, value = images()
    options = {"states": 60, "held_out": 20, "progress": False, "max_order": 2}
    wide = draw_patches(3, n=9, grid=3)
    here = symgen.extract(model, Inputs(x, y), wide, value, **options)
    with second_device():
        there = symgen.extract(model.to("cuda"), Inputs(x, y), wide, value, **options)
    torch.testing.assert_close(there.v, here.v, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(there.objective, here.objective, atol=1e-2, rtol=1e-3)
