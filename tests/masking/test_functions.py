"""Any function on any inputs: the same v as by hand, and refusals of the rest."""

import numpy as np
import pandas as pd
import pytest
import scipy.special
import torch
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.svm import SVC

from symgen.masking.mask_values import MaskValue
from symgen.masking.outputs import masked_outputs
from symgen.masking.states import log_odds
from symgen.masking.variables import draw_patches

RANDOM = np.random.default_rng(0)
TABLE = RANDOM.normal(size=(80, 5))
LABELS = (TABLE[:, 0] * TABLE[:, 1] > 0) + 0
COLUMNS = np.arange(5)[None]
STATES = [np.array([s >> i & 1 for i in range(5)], bool) for s in range(32)]


def by_hand(function, x, label, value):
    """v of one row of a table by a loop over states."""
    logits = [function(np.where(keep, x, value)[None])[0] for keep in STATES]
    return log_odds(torch.tensor(np.array(logits)), torch.tensor([label] * 32))


@pytest.mark.parametrize("batch_size", [None, 1, 7])
def test_classifiers_of_scikit_learn(batch_size):
    forest = RandomForestClassifier(20, random_state=0).fit(TABLE[20:], LABELS[20:])
    line = LogisticRegression().fit(TABLE, LABELS)

    def smooth(x):
        assert isinstance(x, np.ndarray) and x.dtype == np.float64 and len(x) <= 1024
        return np.log(forest.predict_proba(x) + 1e-3)

    x, y = TABLE[:4], LABELS[:4]
    for function in (smooth, line.predict_log_proba):
        v = masked_outputs(function, x, y, COLUMNS, x.mean(0), batch_size)
        assert v.shape == (4, 32) and v.dtype == torch.float64
        for row in range(4):
            torch.testing.assert_close(v[row], by_hand(function, x[row], y[row], x.mean(0)))
    one, none = (masked_outputs(line.decision_function, x, [k] * 4, COLUMNS, 0.0) for k in (1, 0))
    logs = masked_outputs(line.predict_log_proba, x, [1] * 4, COLUMNS, 0.0)
    assert torch.equal(one, -none) and torch.allclose(one, logs)


def test_a_masked_column_may_be_a_missing_value():
    trees = HistGradientBoostingClassifier(max_iter=10, random_state=0).fit(TABLE, LABELS)
    v = masked_outputs(trees.decision_function, TABLE[:2], [1, 1], COLUMNS, np.float32("nan"))
    missing = np.where(np.arange(5) == 2, TABLE[:2], np.nan)
    np.testing.assert_allclose(v[:, 4], trees.decision_function(missing))


def test_functions_may_write_into_their_inputs():
    x = np.array([[0.1, 0.2, 0.3], [1.0, 2.0, 3.0]])
    calls = []

    def halved(x):
        calls.append(len(x))
        x[x.max(1) > 1] /= 2
        return x.sum(1)

    v = masked_outputs(halved, x, [1, 1], np.arange(3)[None], 0.0, 4)
    np.testing.assert_allclose(v[0], [0, 0.1, 0.2, 0.3, 0.3, 0.4, 0.5, 0.6])
    np.testing.assert_allclose(v[1], [0, 1, 1, 1.5, 1.5, 2, 2.5, 3])
    assert x[1].tolist() == [1, 2, 3] and max(calls) <= 4


def test_a_sound_has_pieces_that_differ_between_samples():
    x = torch.randn(3, 1, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weight = torch.randn(12, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def sound(x):
        assert x.shape[1:] == (1, 12)
        return (x[:, 0].relu() @ weight).sinh()

    pieces = torch.tensor([[0] * 4 + [1] * 4 + [-1] * 4, [-1] * 8 + [1, 0] * 2, [0] * 11 + [1]])
    y, value = torch.tensor([0, 1, 2]), torch.linspace(-1, 1, 12).double()
    v = masked_outputs(sound, x, y, pieces, value, 5)
    for row in range(3):
        for state in range(4):
            keep = torch.tensor([p < 0 or bool(state >> p & 1) for p in pieces[row].tolist()])
            z = sound(torch.where(keep, x[row], value)[None])
            torch.testing.assert_close(v[row, state], log_odds(z, y[row : row + 1])[0])


def test_a_module_masked_at_its_input_is_the_same_by_patches_and_by_numbers():
    torch.manual_seed(0)
    layers = torch.nn.Dropout(0.5), torch.nn.Flatten(), torch.nn.Linear(48, 3)
    network = torch.nn.Sequential(*layers).train()
    images, y = torch.randn(4, 3, 4, 4), [0, 1, 2, 0]
    variables, mean = draw_patches(4, n=3, grid=2), MaskValue(images.mean(0), None)
    numbers = variables.owners(4, 4)
    numbers = numbers.where(numbers < 3, -1)
    by_patches = masked_outputs(network, images, y, variables, mean)
    for x in (images, images.double(), images.numpy()):
        torch.testing.assert_close(masked_outputs(network, x, y, numbers, mean), by_patches)
    assert network.training
    function = network.eval().forward
    torch.testing.assert_close(masked_outputs(function, images, y, variables, mean), by_patches)


@pytest.mark.parametrize("value", [0.1, np.float64(0.1), np.full(2, 0.1)])
def test_a_mask_value_is_as_exact_as_the_inputs(value):
    rule = lambda x: 3.0 * (x > 0.1).sum(1)  # noqa: E731
    v = masked_outputs(rule, np.array([[0.9, 0.8]]), [1], np.arange(2)[None], value)
    assert v.tolist() == [[0, 3, 3, 6]]


def test_a_function_may_compute_gradients():
    def slope(x):
        with torch.enable_grad():
            x = x.requires_grad_()
            return torch.autograd.grad((x**2).sum(), x)[0].sum(1)

    v = masked_outputs(slope, torch.tensor([[1.0, 3.0]]), [1], np.arange(2)[None], 0.0)
    assert v.tolist() == [[0, 2, 6, 8]]


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_scripted_modules_are_masked_at_their_input():
    torch.manual_seed(0)
    x, y = torch.randn(3, 4), [0, 1, 2]
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    given = x, y, np.arange(4)[None], 0.0
    expected = masked_outputs(module, *given)
    torch.testing.assert_close(masked_outputs(torch.jit.script(module), *given), expected)


def test_arrays_of_any_layout_and_outputs_of_any_kind():
    x, y = TABLE[:4], np.array([0, 1, 1, 0], dtype=">i8")
    expected = masked_outputs(lambda x: x, x, y, COLUMNS, x.mean(0))
    locked = x.copy()
    locked.flags.writeable = False
    for table in (x[:, ::-1].copy()[:, ::-1], x.astype(">f8"), locked, np.asfortranarray(x)):
        v = masked_outputs(
            lambda x: x, table, y[::-1].copy()[::-1], COLUMNS, x.mean(0).astype(">f8")
        )
        assert torch.equal(v, expected)
    one = masked_outputs(lambda x: x.sum(1), x, [1] * 4, COLUMNS, 0.0)
    for kind in (list, pd.Series, lambda z: z[:, None], torch.from_numpy):
        v = masked_outputs(lambda x, kind=kind: kind(x.sum(1)), x, [1] * 4, COLUMNS, 0.0)
        assert torch.equal(v, one)
    frame = masked_outputs(lambda x: pd.DataFrame(x), x, y, COLUMNS, x.mean(0))
    assert torch.equal(frame, expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": lambda x: np.full((len(x), 4), 0.25)}, "probabilities.*predict_log_proba"),
        ({"model": lambda x: None}, "returned NoneType for .*expected floating logits"),
        ({"model": lambda x: ["cat"] * len(x)}, "convert np.ndarray of type numpy.str_"),
        ({"model": lambda x: np.array(["cat"] * len(x), object)}, "numpy.object_"),
        ({"x": TABLE[:4].round().astype(int)}, "ndarray int64 .*floating inputs"),
        ({"x": [[0.5] * 5] * 4}, "x is list; expected floating inputs"),
        ({"x": pd.DataFrame(TABLE[:4])}, r"x is DataFrame; .*to_numpy\(float\)"),
        ({"variables": np.arange(5)}, "variables 5"),
        ({"variables": COLUMNS / 1}, "float64.*whole numbers"),
        ({"variables": np.arange(4)[None]}, r"must match.*\[4, 5\].*\[1, 4\]"),
        ({"variables": np.full((1, 5), -1)}, "expected whole numbers"),
        ({"mask_value": np.zeros(4)}, r"mask value has shape \(4,\), but the input has \(5,\)"),
        ({"mask_value": np.nan}, "v is nan in masked state.*smooth them"),
        ({"mask_value": MaskValue(torch.zeros(()), "relu")}, "for layer 'relu', but the variables"),
    ],
)
def test_refusals(changes, message):
    usual = {
        "model": lambda x: x, "x": TABLE[:4], "target": [0, 1, 2, 3], "variables": COLUMNS,
        "mask_value": 0.0,
    }  # fmt: skip
    masked_outputs(**usual)
    errors = ValueError, TypeError, RuntimeError, FloatingPointError
    with pytest.raises(errors, match=f"(?s){message}"):
        masked_outputs(**{**usual, **changes})


def test_pairs_of_classes_are_no_classes():
    classes = np.arange(80) % 3
    machine = SVC(decision_function_shape="ovo").fit(TABLE, classes)
    with pytest.raises(ValueError, match="returns a number per pair of its 3 classes; .*'ovr'"):
        masked_outputs(machine.decision_function, TABLE[:2], [0, 2], COLUMNS, 0.0)
    machine.decision_function_shape = "ovr"
    masked_outputs(machine.decision_function, TABLE[:2], [0, 2], COLUMNS, 0.0)


def test_numbers_between_0_and_1_are_questioned():
    given = TABLE[:4], [0, 1, 1, 0], COLUMNS, 0.0
    for function in (lambda x: 3 * x[:, 0] + 2, lambda x: x):
        masked_outputs(function, *given)
    for function in (lambda x: scipy.special.expit(3 * x.sum(1)), scipy.special.expit):
        with pytest.warns(UserWarning, match="lie between 0 and 1.*logit"):
            masked_outputs(function, *given)
