"""`extract`: what people give it at first, and what they are told."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from symgen import draw_patches, extract, masked_outputs, mean_feature
from symgen.masking.extraction import _check as check
from symgen.masking.hooks import Inputs
from symgen.masking.sampled import sampled_outputs
from symgen.masking.spans import TextVariables
from symgen.split.design import draw_states

TABLE, ROW = np.zeros((2, 3)), np.zeros(3)
PICTURES = torch.rand(2, 1, 6, 6, generator=torch.Generator().manual_seed(0))


class Forest:
    def predict_log_proba(self, x):
        with np.errstate(divide="ignore"):
            return np.log(np.stack([x[:, 0] == 0, x[:, 0] != 0], 1).astype(float))


def network():
    torch.manual_seed(0)
    convolution = nn.Conv2d(1, 2, 3)
    nn.init.ones_(convolution.bias)  # so that some ReLU is on in every picture
    return nn.Sequential(convolution, nn.ReLU(), nn.Flatten(), nn.Linear(32, 2)).eval()


def rows_network():
    return nn.Sequential(nn.Linear(3, 2)).eval()


def linear(x):
    return np.stack([0 * x[:, 0], x.sum(1)], 1)


PATCHES = draw_patches(2, n=4, grid=2)
OWN = np.arange(3)[None]
WORDS, IDS = TextVariables((((1,), (2,)),) * 2), torch.ones(2, 4, dtype=torch.long)
GIVEN = {
    "one label": ((linear, Inputs(ROW, np.int64(1)), OWN, 0.0), r"Inputs\(x\[None\], \[y\]\)"),
    "one tensor": ((linear, Inputs(ROW, torch.tensor(1)), OWN, 0.0), "also a single one"),
    "estimator": ((Forest(), Inputs(TABLE, [0, 1]), OWN, 0.0), "model.predict_log_proba"),
    "frame": ((linear, Inputs(pd.DataFrame(TABLE), [0, 1]), OWN, 0.0), r"x.to_numpy\(float\)"),
    "one row": ((linear, Inputs(TABLE, [0, 1]), np.arange(3), 0.0), r"np.arange\(8\)\[None\]"),
    "none": ((linear, Inputs(TABLE, [0, 1]), None, 0.0), r"np.arange\(8\)\[None\]"),
    "list": ((linear, Inputs(TABLE, [0, 1]), [0, 1, 2], 0.0), r"np.arange\(8\)\[None\]"),
    "number": ((network(), Inputs(PICTURES, [0, 1]), PATCHES, 0.0), "mask value is float"),
    "no value": ((network(), Inputs(PICTURES, [0, 1]), PATCHES, None), "with layer=None"),
    "array": ((network(), Inputs(PICTURES.numpy(), [0, 1]), PATCHES, 0.0), "torch.from_numpy"),
    "no channel": ((network(), Inputs(PICTURES[:, 0], [0, 1]), PATCHES, 0.0), r"x\[:, None\]"),
    "too many": ((linear, Inputs(np.zeros((1, 20)), [0]), np.arange(20)[None], 0.0), "states=500"),
    "class": ((nn.Sequential, Inputs(PICTURES, [0, 1]), PATCHES, 0.0), "is the class Sequential"),
    "function": ((linear, Inputs(PICTURES, [0, 1]), PATCHES, 0.0), "inside a network"),
    "series": ((linear, Inputs(TABLE, [0, 1]), OWN, pd.Series(ROW)), r"\.to_numpy\(float\)"),
    "texts": ((network(), Inputs(["a b", "c d"], [0, 1]), WORDS, 0.0), "padding=True"),
    "token": ((network(), Inputs(IDS, [0, 1]), WORDS, "[MASK]"), r"mean_embedding\(model\)"),
    "no token": ((network(), Inputs(IDS, [0, 1]), WORDS, None), r"mean_embedding\(model\)"),
    "labels": ((linear, Inputs(TABLE, pd.Series([0, 1])), OWN, 0.0), r"y.to_numpy\(\)"),
    "rows": ((rows_network(), Inputs(TABLE, [0, 1]), OWN, 0.0), r"from_numpy\(x\).to\(torch.float"),
    "no inputs": ((linear, TABLE, OWN, 0.0), "symgen.Inputs"),
    "no samples": ((linear, Inputs(TABLE[:0], []), OWN, 0.0), "no samples; pass one or more"),
    "below -1": ((linear, Inputs(TABLE, [0, 1]), OWN - 2, 0.0), "the number -2; .* never masked"),
}


@pytest.mark.parametrize("what", GIVEN)
def test_what_cannot_work_is_told_before_anything_runs(what):
    given, message = GIVEN[what]
    with pytest.raises(ValueError, match=message):
        check(*given, None, 100, None)


def test_names_are_a_list():
    with pytest.raises(ValueError, match="names is the text 'abc'"):
        check(linear, Inputs(TABLE, [0, 1]), OWN, 0.0, None, 100, "abc")


@pytest.mark.parametrize("states", [1, 300.0, True, 8])
def test_states_that_cannot_be_drawn_are_told_with_what_was_given(states):
    with pytest.raises(ValueError, match="states is|states = 8 and held_out = 100"):
        check(linear, Inputs(TABLE, [0, 1]), OWN, 0.0, states, 100, None)


def test_extract_checks_what_it_is_given():
    with pytest.raises(ValueError, match="also a single one"):
        extract(linear, Inputs(ROW, torch.tensor(1)), OWN, 0.0)


def test_a_probability_of_zero_is_explained():
    forest, x = Forest().predict_log_proba, np.ones((1, 3))
    with pytest.raises(FloatingPointError) as caught:
        extract(forest, Inputs(x, [1]), OWN, 0.0, progress=False)
    assert "smooth it first" in caught.value.__notes__[0]


def test_pictures_themselves_can_be_masked_whatever_the_layers():
    flat = nn.Sequential(nn.Flatten(), nn.Linear(36, 2)).eval()
    value = mean_feature(flat, PICTURES, layer=None)
    found = extract(flat, Inputs(PICTURES, [0, 1]), PATCHES, value, progress=False)
    assert found.n == 4 and (found.gap <= 1e-3).all()


@pytest.mark.parametrize("states", [None, 8])
def test_a_network_that_ends_in_a_softmax_is_refused_at_hidden_layers_too(states):
    sure = nn.Sequential(*network(), nn.Softmax(-1)).eval()
    value = mean_feature(sure, PICTURES)
    given = Inputs(PICTURES, [0, 1]), PATCHES, value
    with pytest.raises(ValueError, match="returns probabilities.*expected logits"):
        extract(
            sure, *given, progress=False, **({"states": states, "held_out": 4} if states else {})
        )
    extract(network(), *given, progress=False)
    with pytest.raises(ValueError, match="returns probabilities.*expected logits"):
        masked_outputs(sure, PICTURES, [0, 1], PATCHES, value, progress=False)


def test_a_softmax_is_noticed_behind_a_network_that_has_passed():
    """Its weights and samples are those of the network without it."""
    plain = network()
    given = Inputs(PICTURES, [0, 1]), PATCHES, mean_feature(plain, PICTURES, None)
    extract(plain, *given, progress=False)
    with pytest.raises(ValueError, match="returns probabilities.*expected logits"):
        extract(nn.Sequential(plain, nn.Softmax(-1)), *given, progress=False)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_first_sample_without_numbers_is_told(bad):
    pictures = PICTURES.clone()
    pictures[0, 0, 0, 0] = bad
    value = mean_feature(network(), PICTURES)
    with pytest.raises(FloatingPointError, match="sample 0: the network's logits are NaN"):
        extract(network(), Inputs(pictures, [0, 1]), PATCHES, value, progress=False)


def test_log_odds_may_stand_in_a_column():
    def column(x):
        return 4 * x.sum(1, keepdims=True) - 2

    given = Inputs(TABLE, [0, 1]), OWN, 0.5
    found = extract(column, *given, progress=False)
    assert found == extract(lambda x: column(x)[:, 0], *given, progress=False)


@pytest.mark.parametrize("layer", ["first_relu", None])
@pytest.mark.parametrize("states", [None, 8])
def test_samples_on_another_scale_than_the_mask_images_are_noticed(layer, states):
    drawn = {} if states is None else {"states": states, "held_out": 4, "max_order": 1}
    images = torch.rand(40, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    model = network()
    model[0].weight.data.abs_()

    def found(x, mask):
        value = mean_feature(model, mask, layer=layer)
        return extract(model, Inputs(x, [0, 1]), PATCHES, value, progress=False, **drawn)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found(PICTURES, images)
        found(PICTURES - 0.5, images - 0.5)  # of what has signs a mean says nothing
        if layer is None:
            found(PICTURES - 0.5, 255 * (images - 0.5))
    with pytest.warns(UserWarning, match="samples are .* times smaller than the mask value"):
        found(PICTURES, 255 * images)
    with pytest.warns(UserWarning, match="samples are .* times larger than the mask value"):
        found(255 * PICTURES, images)


@pytest.mark.parametrize(
    ("patches", "told"),
    [
        (torch.zeros(2, 4), r"float32 of shape \(2, 4\); .* from 0 to 3"),
        (torch.ones(2, 4) > 0, "torch.bool"),
        (PATCHES.patches.numpy(), "int64 of shape|array of shape"),
        (PATCHES.patches + 1, "cells of a grid of 2 x 2: see symgen.draw_patches"),
        (PATCHES.patches[0], r"shape \(4,\)"),
        ([[0, 1]] * 2, r"list of shape \(2, 2\)"),
        (torch.tensor([[0, 1], [3, 3]]), r"sample 1 has the patches \[3, 3\]; .* of its own"),
    ],
)
def test_patches_are_different_cells_of_the_grid(patches, told):
    """Another number, or one twice, would be masked somewhere else without a word."""
    given = draw_patches(2, n=4, grid=2)
    object.__setattr__(given, "patches", patches)  # types are checked here, and not for users
    value = mean_feature(network(), PICTURES)
    with pytest.raises(ValueError, match=told):
        extract(network(), Inputs(PICTURES, [0, 1]), given, value)


def test_a_mean_of_no_image_is_refused():
    with pytest.raises(ValueError, match="no images; pass one or more"):
        mean_feature(network(), PICTURES[:0])


SEGMENTS = (torch.arange(6)[:, None] // 3 * 2 + torch.arange(6) // 3).expand(2, 1, 6, 6)


@pytest.mark.parametrize("states", [None, 4])
def test_pixels_of_another_precision_are_told_where_a_network_does_not_take_them(states):
    class Taking(nn.Sequential):
        def forward(self, x):
            return super().forward(x.float())

    def extracted(model, x):
        options = {"states": states, "held_out": 4} if states else {}
        return extract(model, Inputs(x, [0, 1]), SEGMENTS, 0.0, progress=False, **options)

    model, doubled = network(), PICTURES.double()
    with pytest.raises(ValueError, match=r"float64 .*float32: .* pass x.to\(torch.float32\)"):
        extracted(model, doubled)
    expected = extracted(model, PICTURES)
    torch.testing.assert_close(extracted(Taking(*model), doubled).full, expected.full)
    torch.testing.assert_close(
        extracted(network().double(), doubled).full, expected.full, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("variables", [SEGMENTS, PATCHES])
def test_a_layer_that_mixes_samples_is_told_by_name(variables):
    """Its effect on v may be too small to be seen there."""
    first, *rest = network()
    mixed = nn.Sequential(first, nn.BatchNorm2d(2, track_running_stats=False), *rest).eval()
    with pytest.raises(ValueError, match="layer '1' is a BatchNorm2d without running statistics"):
        check(mixed, Inputs(PICTURES, [0, 1]), variables, mean_feature(mixed, PICTURES, None),
              None, 100, None)  # fmt: skip
    kept = nn.Sequential(first, nn.BatchNorm2d(2), *rest).eval()
    check(kept, Inputs(PICTURES, [0, 1]), variables, mean_feature(kept, PICTURES, None),
          None, 100, None)  # fmt: skip


MEAN = np.array([5.0, 5, 5])


def writing(x):
    x -= MEAN
    return linear(x)


class Writing(nn.Sequential):
    def forward(self, x):
        return super().forward(x.sub_(0.5))


@pytest.mark.parametrize("states", [None, 4])
def test_what_writes_into_the_samples_is_refused_and_they_stay_as_they_were(states):
    """The second run saw others than the first, and the reader's own array was overwritten."""
    options = {"states": states, "held_out": 4} if states else {}
    table, pictures = np.full((2, 3), 6.0), PICTURES.clone()
    network_of = Writing(*network()).eval()
    cases = [(writing, table, OWN, MEAN), (network_of, pictures, SEGMENTS, 0.0)]
    if not states:
        value = mean_feature(network(), PICTURES, None)
        cases.append((network_of, pictures, PATCHES, value))
    for model, x, variables, value in cases:
        with pytest.raises(ValueError, match="writes into the samples"):
            extract(model, Inputs(x, [0, 1]), variables, value, progress=False, **options)
        assert np.array_equal(x, np.full((2, 3), 6.0) if x is table else PICTURES)
    with pytest.raises(ValueError, match="network writes into the samples"):
        mean_feature(network_of, pictures, None)
    assert torch.equal(pictures, PICTURES)
    copied = extract(lambda x: writing(x.copy()), Inputs(table, [1, 1]), OWN, MEAN, **options)
    assert copied.full.tolist() == pytest.approx([3.0, 3.0])


def test_a_softmax_in_a_forward_is_noticed_behind_logits_that_have_passed(cache):
    class Own(nn.Module):
        def __init__(self, soft):
            super().__init__()
            self.soft, self.layers = soft, network()

        def forward(self, x):
            return self.layers(x).softmax(-1) if self.soft else self.layers(x)

    value = mean_feature(Own(False), PICTURES)
    extract(Own(False), Inputs(PICTURES, [0, 1]), PATCHES, value, progress=False)
    with pytest.raises(ValueError, match="probabilities"):
        extract(Own(True), Inputs(PICTURES, [0, 1]), PATCHES, value, progress=False)


@pytest.mark.parametrize("batch", [PICTURES[0], [PICTURES[0]], [{"image": PICTURES}]])
@pytest.mark.parametrize("layer", [None, "first_relu"])
def test_a_mean_of_what_is_no_batch_of_images_is_refused(batch, layer):
    """Of one image it was the mean over its colours, which fits every image."""
    with pytest.raises(ValueError, match=r"expected \(sample, channel|give the images alone"):
        mean_feature(network(), batch, layer)


@pytest.mark.parametrize("names", [["a", "b"], [["a", "b", "c"]], [["a"], ["b"]]])
def test_names_that_do_not_fit_are_told_before_anything_runs(names):
    with pytest.raises(ValueError, match="expected a list of 3 names, or one for each"):
        check(linear, Inputs(TABLE, [0, 1]), OWN, 0.0, None, 100, names)


def test_a_network_may_take_arrays():
    class OfArrays(nn.Module):
        def forward(self, x):
            return torch.from_numpy(linear(x))

    found = extract(OfArrays().eval(), Inputs(np.eye(3)[:2], [1, 1]), OWN, 0.0, progress=False)
    assert found.total_effect.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ({"max_order": 1}, "max_order = 1 is of a sample .* give states"),
        ({"held_out": 7}, "held_out = 7 is of a sample"),
        ({"seed": 9}, "seed = 9 is of a sample"),
        ({"batchsize": 4}, 'takes no batchsize.*"batch_size"'),
        ({"key": "mine"}, r"key is 'mine'; expected a mapping .*\{\"network\": \"mine\""),
    ],
)
def test_options_that_nothing_takes_are_refused(option, told):
    with pytest.raises(ValueError, match=told):
        extract(linear, Inputs(TABLE, [0, 1]), OWN, 1.0, progress=False, **option)


def test_texts_as_labels_are_told_how_to_become_numbers():
    for labels in (["m", "b"], np.array(["m", "b"])):
        with pytest.raises(
            ValueError, match=r"y holds texts, such as .*searchsorted\(model.classes_"
        ):
            extract(linear, Inputs(TABLE, labels), OWN, 1.0, progress=False)


def test_a_key_tells_functions_that_make_mask_values_apart():
    """Outputs with one value were once found again for another."""
    given = network(), torch.ones(2, 1, 6, 6), [0, 1], SEGMENTS

    def outputs(value, key):
        return masked_outputs(*given, lambda model: torch.tensor(value), key=key, progress=False)

    with pytest.raises(ValueError, match="outputs of any other would be found under this key"):
        outputs(0.0, {"id": 1})
    zero, five = (outputs(x, {"id": 1, "masking": f"{x}"}) for x in (0.0, 5.0))
    assert not torch.equal(zero, five)
    states = draw_states(3, 6)
    with pytest.raises(ValueError, match="outputs of any other would be found under this key"):
        sampled_outputs(*given, lambda model: torch.zeros(()), states, key={"id": 1})


def test_targets_of_several_tokens_are_no_labels():
    """Lists of several lengths are no array."""
    with pytest.raises(ValueError, match="target is list; expected one whole number"):
        extract(linear, Inputs(TABLE, [[1, 2], [3]]), OWN, 1.0, progress=False)
