"""Any function on any inputs: the same v as by hand, and clear words for what is no such thing."""

import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.special
import torch
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression

import symgen
from symgen.masking.hooks import Inputs, _refuse_samples
from symgen.masking.mask_values import MaskValue
from symgen.masking.states import log_odds

RANDOM = np.random.default_rng(0)
TABLE = RANDOM.normal(size=(80, 5))
LABELS = (TABLE[:, 0] * TABLE[:, 1] > 0) + 0
COLUMNS = np.arange(5)[None]


def by_hand(function, x, target, present, value):
    """Masked inputs one at a time, straight from the definition."""
    rows = [
        log_odds(torch.as_tensor(function(torch.where(keep, x, value)[None])), target[None])
        for keep in present
    ]
    return torch.stack(rows)[:, 0]


def present_in(variables, n):
    """Return, for each masked state, which positions stay."""
    bits = torch.arange(2**n)[:, None] >> torch.arange(n) & 1
    return torch.stack([torch.cat([b.bool(), torch.tensor([True])])[variables] for b in bits])


@pytest.mark.parametrize("batch_size", [None, 1, 7])
def test_a_table_of_scikit_learn(batch_size):
    forest = RandomForestClassifier(20, random_state=0).fit(TABLE[20:], LABELS[20:])

    def smooth(x):
        assert isinstance(x, np.ndarray) and x.dtype == np.float64
        return np.log(forest.predict_proba(x) + 1e-3)

    x, y = TABLE[:4], LABELS[:4]
    v = symgen.masked_outputs(smooth, x, y, COLUMNS, x.mean(0), batch_size)
    assert v.shape == (4, 32) and v.dtype == torch.float64
    for row in range(4):
        for state in (0, 5, 31):
            masked = np.where(state >> np.arange(5) & 1, x[row], x.mean(0))
            p = forest.predict_proba(masked[None])[0] + 1e-3
            expected = np.log(p[y[row]] / p[1 - y[row]])
            assert v[row, state].item() == pytest.approx(expected)
    found = symgen.extract(smooth, Inputs(x, y), COLUMNS, x.mean(0), noise=0.0, progress=False)
    assert torch.allclose(found.predict(), v, atol=1e-6)


def test_a_masked_column_may_be_a_missing_value():
    trees = HistGradientBoostingClassifier(max_iter=10, random_state=0).fit(TABLE, LABELS)
    v = symgen.masked_outputs(
        trees.decision_function, TABLE[:2], [1, 1], COLUMNS, np.float32("nan")
    )
    missing = np.where(np.arange(5) == 2, TABLE[:2], np.nan)
    assert v[:, 4].tolist() == pytest.approx(trees.decision_function(missing).tolist())


def test_log_odds_of_class_1_are_turned_around_for_class_0():
    line = LogisticRegression().fit(TABLE, LABELS)
    x = TABLE[:6]
    one = symgen.masked_outputs(line.decision_function, x, [1] * 6, COLUMNS, 0.0)
    none = symgen.masked_outputs(line.decision_function, x, [0] * 6, COLUMNS, 0.0)
    logs = symgen.masked_outputs(line.predict_log_proba, x, [1] * 6, COLUMNS, 0.0)
    assert torch.equal(one, -none) and torch.allclose(one, logs)
    assert one[:, -1].tolist() == pytest.approx(line.decision_function(x).tolist())


def test_a_sound_has_pieces_of_its_own_in_every_sample():
    """Samples (1, time), pieces that lie elsewhere in each of them, and times that always stay."""
    x = torch.randn(3, 1, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weight = torch.randn(12, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def sound(x):
        assert x.shape[1:] == (1, 12)
        return (x[:, 0].relu() @ weight).sinh()

    pieces = torch.tensor([[0] * 4 + [1] * 4 + [-1] * 4, [-1] * 8 + [1, 0] * 2, [0] * 11 + [1]])
    y, value = torch.tensor([0, 1, 2]), torch.linspace(-1, 1, 12).double()
    v = symgen.masked_outputs(sound, x, y, pieces, value, batch_size=5)
    for row in range(3):
        numbers = pieces[row].where(pieces[row] >= 0, 2)
        expected = by_hand(sound, x[row], y[row], present_in(numbers, 2)[:, None], value)
        assert torch.allclose(v[row], expected)


class Small(torch.nn.Module):
    """Any network: dropout and all."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Dropout(0.5), torch.nn.Flatten(), torch.nn.Linear(48, 3)
        )

    def forward(self, x):
        return self.layers(x)


def test_a_module_masked_at_its_input_is_the_same_by_patches_and_by_numbers():
    torch.manual_seed(0)
    network = Small().train()
    images = torch.randn(4, 3, 4, 4)
    y, drawn = [0, 1, 2, 0], symgen.draw_patches(4, n=3, grid=2)
    mean = MaskValue(images.mean(0), None)
    numbers = drawn.owners(4, 4)
    by_patches = symgen.masked_outputs(network, images, y, drawn, mean)
    numbers = numbers.where(numbers < 3, -1)
    assert torch.allclose(symgen.masked_outputs(network, images, y, numbers, mean), by_patches)
    assert network.training

    def function(x):
        return network.eval()(x)

    assert torch.allclose(symgen.masked_outputs(function, images, y, drawn, mean), by_patches)


def test_outputs_are_stored_with_a_key():
    calls = []

    def count(x):
        calls.append(len(x))
        return x.sum(1)

    x, y = torch.randn(2, 3), [1, 0]
    given = (count, x, y, torch.arange(3)[None])
    first = symgen.masked_outputs(*given, 0.0, key={"function": "count, stored"})
    before = len(calls)
    assert torch.equal(symgen.masked_outputs(*given, 0.0, key={"function": "count, stored"}), first)
    assert len(calls) == before
    symgen.masked_outputs(*given, 1.0, key={"function": "count, stored"})
    assert len(calls) > before


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"model": lambda x: np.full((len(x), 2), 0.5)}, "probabilities.*predict_log_proba"),
        ({"model": lambda x: x.sum()}, r"shape \(\) for 4 inputs; expected floating logits"),
        ({"model": lambda x: (x[:, 0] > 0) + 0}, "int64 of shape"),
        ({"model": lambda x: x[:1]}, r"shape \(1, 5\) for 4 inputs"),
        ({"model": lambda x: None}, "returned NoneType; expected logits"),
        ({"model": lambda x: np.array(["cat"] * len(x))}, "returns 'cat', .*predict_log_proba"),
        ({"model": lambda x: np.array(["cat"] * len(x), object)}, "returns 'cat', 'cat'"),
        ({"model": lambda x: x * np.random.normal()}, "deterministic"),
        ({"x": TABLE[:4].round().astype(int)}, "ndarray of int64.*floating inputs"),
        ({"x": [[0.5] * 5] * 4}, "x is list; a function takes floating inputs"),
        ({"target": [0, 1, 5, 1]}, "label of sample 2 is 5"),
        ({"variables": np.arange(5)}, r"int64 of shape \(5,\)|5 samples|variables 5"),
        ({"variables": COLUMNS / 1}, "float64.*whole numbers"),
        ({"variables": np.arange(4)[None]}, r"shape \(1, 4\), but inputs \(4, 5\)"),
        ({"variables": np.array([[0, 1, 3, 3, -1]])}, "no position of variable 2"),
        ({"variables": np.full((1, 5), -1)}, "no position of variable 0"),
        ({"baseline": np.zeros(4)}, r"mask value has shape \(4,\).*x.mean\(0\)"),
        ({"baseline": np.nan}, "v is nan in masked state"),
        ({"x": pd.DataFrame(TABLE[:4])}, "x is DataFrame; a function takes floating inputs"),
        ({"baseline": None}, "mask value is None"),
        ({"baseline": MaskValue(torch.zeros(()), "relu")}, "where inputs are masked"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told(changed, told):
    usual = {
        "model": lambda x: x, "x": TABLE[:4], "target": [0, 1, 2, 3], "variables": COLUMNS,
        "baseline": 0.0,
    }  # fmt: skip
    symgen.masked_outputs(**usual)
    errors = ValueError, TypeError, RuntimeError, FloatingPointError
    with pytest.raises(errors, match=f"(?s){told}"):
        symgen.masked_outputs(**{**usual, **changed})


def test_sigmoids_of_several_classes_are_asked_about():
    given = TABLE[:4], [0, 1, 1, 0], COLUMNS, 0.0
    with pytest.warns(
        UserWarning, match=r"5 numbers between 0 and 1 .*lambda x: logits\(x\)\[:, 3\]"
    ):
        symgen.masked_outputs(lambda x: 1 / (1 + np.exp(-x)), *given)
    # Logits, the log odds of one class, and votes.
    for apart in (lambda x: x, lambda x: 3 * x[:, 0], lambda x: (x > 0).astype(float)):
        symgen.masked_outputs(apart, *given)


def test_arrays_that_may_only_be_read_are_taken_without_a_warning():
    table = pd.DataFrame(TABLE[:4]).to_numpy(float).copy()
    table.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = symgen.masked_outputs(lambda x: x, table, [0, 1, 1, 0], COLUMNS, 0.0)
    wanted = symgen.masked_outputs(lambda x: x, TABLE[:4], [0, 1, 1, 0], COLUMNS, 0.0)
    assert torch.equal(found, wanted)


def test_one_probability_for_each_input_is_asked_about():
    given = TABLE[:4], [0, 1, 1, 0], COLUMNS, 0.0

    def log_odds(x):
        return 3 * x.sum(1) - 2

    symgen.masked_outputs(log_odds, *given)
    with pytest.warns(UserWarning, match=r"8 inputs.*as log odds.*scipy.special.logit\(function"):
        symgen.masked_outputs(lambda x: scipy.special.expit(log_odds(x)), *given)


def test_a_network_never_says_nothing_of_infinite_log_probabilities():
    with pytest.raises(FloatingPointError, match="infinite"):
        sure = torch.tensor([[0.0, -torch.inf]])
        symgen.masked_outputs(
            lambda x: sure.expand(len(x), 2), torch.ones(1, 2), [0], torch.tensor([[0, 1]]), 0.0
        )


def test_the_first_samples_of_a_loader():
    data = torch.utils.data.TensorDataset(torch.arange(10.0)[:, None], torch.arange(10))
    found = symgen.Inputs.of(torch.utils.data.DataLoader(data, batch_size=4), 6)
    assert found.x[:, 0].tolist() == found.y.tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(ValueError, match=r"inputs are DataLoader.*Inputs.of\(loader, count\)"):
        symgen.extract(len, torch.utils.data.DataLoader(data), torch.tensor([[0]]), 0.0)
    with pytest.raises(ValueError, match="hold 10 samples"):
        symgen.Inputs.of(torch.utils.data.DataLoader(data), 11)
    with pytest.raises(ValueError, match=r"single samples; expected batches .*DataLoader\(data"):
        _refuse_samples(data)
    with pytest.raises(ValueError, match="expected a pair of tensors"):
        symgen.Inputs.of([{"x": torch.zeros(1)}], 1)
    sorted_ones = torch.utils.data.TensorDataset(torch.zeros(12, 1), torch.arange(12) // 6)
    with pytest.warns(UserWarning, match=r"all 6 samples are of class 0.*shuffle=True"):
        symgen.Inputs.of(torch.utils.data.DataLoader(sorted_ones, batch_size=4), 6)
    symgen.Inputs.of(torch.utils.data.DataLoader(sorted_ones, batch_size=4), 7)
