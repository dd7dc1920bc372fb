"""The penalty: what it is, its gradient, what never happens, and in which loops it works."""

import copy

import pytest
import torch

import symgen
from symgen.data.datasets import load_dataset
from symgen.fingerprints import fingerprint
from symgen.interactions import Interactions
from symgen.masking.hooks import Inputs
from symgen.masking.mask_values import mean_feature, token_embedding
from symgen.masking.outputs import masked_outputs, state_runner
from symgen.masking.spans import draw_words
from symgen.method.penalty import FLOOR, Penalty, drawn_states, lost_share, slopes
from symgen.models.batches import to_device
from symgen.models.loop import Loop
from symgen.models.training import train
from symgen.split.sparsify import sparsify
from symgen.transforms import and_or_outputs

POOL, N = 6, 4
ALL = 2**N

# Networks this small gain nothing from a second thread.
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def images():
    """A small network that has learned a little, samples, variables and a baseline's effects."""
    data = load_dataset("digits", train_size=100, test_size=50)
    runs = [
        train("cnn", data, part, epochs=40, checkpoints=1, progress=False, options={"width": 4})
        for part in ("target", "baseline")
    ]
    x, y = data.part("target").batch(range(POOL))
    variables = symgen.draw_patches(POOL, n=N)
    baseline = extracted(runs[1].load(), x, y, variables)
    return runs[0].load(), Inputs(x, y), variables, baseline


@pytest.fixture(scope="module")
def texts():
    data = load_dataset("planted-sentiment", train_size=60, test_size=50)
    samples = data.sample(POOL, "target")
    model = symgen.build_network("bert-tiny", **data.spec)
    shown = [samples.show(i) for i in range(POOL)]
    length = samples.x["input_ids"].shape[1]
    variables, kept = draw_words(shown, data.tokenizer, n=N, max_length=length)
    samples, token = samples[kept], data.tokenizer.mask_token_id
    v = torch.randn(len(variables), ALL, generator=torch.Generator().manual_seed(1))
    return model, Inputs(samples.x, samples.y), variables, sparsify(v), token


def extracted(model, x, y, variables, **options):
    value = mean_feature(model, x)
    return sparsify(masked_outputs(model, x, y, variables, value, progress=False), **options)


def gradient(model, term):
    found = torch.autograd.grad(term, [*model.parameters()], allow_unused=True)
    return [torch.zeros_like(p) if g is None else g
            for p, g in zip(model.parameters(), found, strict=True)]  # fmt: skip


# What it is ------------------------------------------------------------------------------------


def test_on_images_it_is_the_share_of_salient_strength_that_does_not_transfer(images):
    model, inputs, variables, baseline = images
    term = Penalty(inputs, variables, baseline, samples=POOL, strength=3.0)(1, model)
    inter = extracted(model, inputs.x, inputs.y, variables)
    power = symgen.generalization_power(inter, symgen.transfer(inter, baseline))
    strength = (inter.effects.abs() * torch.stack(inter.salient(), -2)).sum((-2, -1))
    assert (strength > FLOOR).any() and (strength < FLOOR).any() and 0.01 < power.mean() < 0.99
    lost = (1 - power) * (strength / FLOOR).clamp(max=1)
    assert term.item() == pytest.approx(3 * lost.mean().item(), rel=1e-4)


def test_on_texts_it_is_the_same_with_words_masked_by_a_token(texts):
    model, inputs, variables, baseline, token = texts
    term = Penalty(inputs, variables, baseline, token, samples=len(variables))(1, model)
    value = token_embedding(model, token)
    v = masked_outputs(model, inputs.x, inputs.y, variables, value, progress=False)
    inter = sparsify(v)
    lost, _ = lost_share(inter, symgen.transfer(inter, baseline))
    assert 0 < lost.mean() < 1
    assert term.item() == pytest.approx(lost.mean().item(), rel=1e-4)
    assert any(bool(g.abs().sum() > 0) for g in gradient(model, term))


@pytest.mark.parametrize("samples", [1, 2])
def test_gradients_go_through_all_layers_however_few_samples_are_drawn(images, samples):
    """Below the masked layer as well, where the share itself was computed without gradients."""
    model, inputs, variables, baseline = images
    several = [
        gradient(model, term)
        for step in range(1, 9)
        if (term := Penalty(inputs, variables, baseline, samples=samples)(step, model)).item()
    ]
    assert several and all(g.abs().sum() > 0 for found in several for g in found[:2])


def test_a_weak_sample_is_penalized_less_in_proportion():
    v = torch.zeros(2, ALL, dtype=torch.float64)
    v[0, -1], v[1, -1] = 0.1, 10.0
    inter = sparsify(v, noise=0.0)
    nothing = (torch.zeros_like(v), torch.zeros_like(v))
    assert lost_share(inter, nothing)[0].tolist() == pytest.approx([0.1, 1.0], rel=1e-2)


def test_it_is_zero_and_has_no_gradient_when_everything_transfers(images):
    model, inputs, variables, baseline = images
    own = extracted(model, inputs.x, inputs.y, variables)
    term = Penalty(inputs, variables, [baseline, own], samples=POOL)(1, model)
    assert term.item() == 0
    assert not term.requires_grad or all(not g.any() for g in gradient(model, term))


def test_the_control_penalizes_as_much_strength_of_other_interactions(images):
    model, inputs, variables, baseline = images
    terms = [Penalty(inputs, variables, baseline, samples=POOL, states=ALL, random=random)
             for random in (False, True)]  # fmt: skip
    own, control, again = terms[0](1, model), terms[1](1, model), terms[1](2, model)
    assert own.item() == pytest.approx(control.item(), rel=1e-5)
    first, second, third = (gradient(model, term)[0] for term in (own, control, again))
    assert not torch.allclose(first, second, rtol=0.1) and not torch.equal(second, third)


def test_the_network_is_left_in_its_mode_and_its_averages_as_they_were(images):
    _, inputs, variables, baseline = images
    model = symgen.build_network("resnet20", image_size=20).train()
    before = copy.deepcopy(model.state_dict())
    Penalty(inputs, variables, baseline)(1, model).backward()
    assert model.training and model.bn1.training
    assert all(torch.equal(before[k], x) for k, x in model.state_dict().items())
    assert model.bn1.weight.grad.abs().sum() > 0


# Its gradient ----------------------------------------------------------------------------------


def held(inter, g, v, new):
    """The penalty with new outputs: which effects are salient is held, and they follow v."""
    kept = torch.stack(inter.salient(), -2).flatten(-2)
    one, none = torch.eye(ALL, dtype=torch.float64), torch.zeros(ALL, ALL, dtype=torch.float64)
    columns = torch.cat([and_or_outputs(one, none), and_or_outputs(none, one)]).T
    total = 0.0
    for i in range(len(v)):
        inverse = torch.linalg.pinv(columns[:, kept[i]])
        change = (new[i] - new[i, 0]) - (v[i] - v[i, 0])
        size = (inter.effects[i].flatten()[kept[i]] + inverse @ change).abs()
        weight = (1 - torch.stack(g, -2)[i].flatten())[kept[i]]
        whole = inter.effects[i].flatten()[kept[i]].abs().sum().clamp(min=FLOOR)
        total = total + (size * weight).sum() / whole
    return total / len(v)


def test_the_gradient_is_that_of_finite_differences(images):
    model, inputs, variables, baseline = images
    model, x = copy.deepcopy(model).cpu().double(), inputs.x.double()
    penalty = Penalty(Inputs(x, inputs.y), variables, baseline, samples=POOL, states=ALL)
    found = gradient(model, penalty(1, model))
    # The mask value is held as well.
    runner = state_runner(model, x, inputs.y, variables, penalty.mask_value(model))
    states = torch.arange(ALL)

    def outputs(step, directions):
        moved = copy.deepcopy(model)
        runner.model, runner._below = moved, None
        with torch.no_grad():
            for p, d in zip(moved.parameters(), directions, strict=True):
                p += step * d
            return runner.run(0, POOL, states).clone()

    generator = torch.Generator().manual_seed(0)
    draw = {"generator": generator, "dtype": torch.float64}
    for _ in range(5):
        directions = [torch.randn(p.shape, **draw) for p in model.parameters()]
        v = outputs(0.0, directions)
        inter = sparsify(v)
        g = symgen.transfer(inter, baseline)
        ends = [held(inter, g, v, outputs(step, directions)) for step in (1e-6, -1e-6)]
        wanted = float(ends[0] - ends[1]) / 2e-6
        got = sum(float((a * b).sum()) for a, b in zip(found, directions, strict=True))
        assert abs(wanted) > 1e-3 and got == pytest.approx(wanted, rel=1e-4)


def test_slopes_are_those_of_the_sparsest_split_itself():
    """Planted logic: where v moves with the planted effects, solving again gives the same."""
    generator = torch.Generator().manual_seed(0)
    draw = {"generator": generator, "dtype": torch.float64}
    for _ in range(5):
        and_, or_ = torch.zeros(2, ALL, dtype=torch.float64)
        kept_and, kept_or = [1, 6, 11], [12, 7]
        and_[kept_and], or_[kept_or] = 1 + torch.rand(3, **draw), -1 - torch.rand(2, **draw)
        v, weights = and_or_outputs(and_, or_)[None], torch.rand(1, 2, ALL, **draw)
        change = torch.zeros(2, ALL, dtype=torch.float64)
        change[0, kept_and], change[1, kept_or] = torch.randn(3, **draw), torch.randn(2, **draw)
        direction = and_or_outputs(*change)[None]

        def strength(step, v=v, weights=weights, direction=direction):
            inter = sparsify(v + step * direction, noise=0.0, tol=1e-9)
            return float((inter.effects.abs() * weights).sum())

        inter = sparsify(v, noise=0.0, tol=1e-9)
        assert [int(x.sum()) for x in inter.salient()] == [3, 2]
        wanted = (strength(1e-3) - strength(-1e-3)) / 2e-3
        assert float((slopes(inter, weights) * direction).sum()) == pytest.approx(wanted, rel=1e-3)


def test_a_few_drawn_states_stand_for_all_on_average():
    generator = torch.Generator().manual_seed(0)
    slope = torch.randn(64, generator=generator, dtype=torch.float64) ** 3
    total, draws = torch.zeros(64, dtype=torch.float64), 4000
    for _ in range(draws):
        states, factors = drawn_states(slope, 6, generator)
        assert 1 <= len(states) <= 6 and (slope[states] * factors > 0).all()
        assert float(factors.abs().sum()) == pytest.approx(float(slope.abs().sum()))
        total[states] += factors
    # Of systematic sampling a factor has at most the variance of a yes or no.
    error = (slope.abs() * slope.abs().sum() / 6 / draws).sqrt()
    assert ((total / draws - slope).abs() <= 5 * error + 1e-9).all()
    assert drawn_states(torch.zeros(64), 6, generator)[0].tolist() == []


def test_the_gradient_through_a_few_states_is_the_whole_one_on_average(images):
    model, inputs, variables, baseline = images
    whole = gradient(
        model, Penalty(inputs, variables, baseline, samples=POOL, states=ALL)(1, model)
    )
    few = [Penalty(inputs, variables, baseline, samples=POOL, states=4, seed=s) for s in range(80)]
    found = [gradient(model, penalty(1, model))[-1] for penalty in few]
    mean, error = torch.stack(found).mean(0), torch.stack(found).std(0) / 80**0.5
    assert ((mean - whole[-1]).abs() <= 5 * error + 1e-6).all() and error.max() > 0


# What never happens ----------------------------------------------------------------------------


class Made(torch.nn.Module):
    """A network whose logits are a given function of the mean feature of each patch."""

    def __init__(self, function):
        super().__init__()
        self.conv, self.relu = torch.nn.Conv2d(3, 4, 1), torch.nn.ReLU()
        self.function = function

    def forward(self, x):
        return self.function(self.relu(self.conv(x)).mean((2, 3)))


MADE = {
    "constant": lambda x: 0 * x,
    "constant and surely right": lambda x: 0 * x + torch.tensor([90.0, 0, 0, 0]),
    "saturated": lambda x: 1e30 * x,
    "faint": lambda x: 1e-30 * x,
    "the same with all and with none": lambda x: (x - x.detach()) + (x - x.mean(0)).abs(),
}


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("states", [3, ALL])
def test_value_and_gradient_are_numbers_whatever_the_outputs(images, kind, states):
    _, inputs, variables, _ = images
    torch.manual_seed(0)
    model = Made(MADE[kind])
    effects = torch.randn(POOL, ALL, generator=torch.Generator().manual_seed(0))
    dead = sparsify(effects) if kind != "constant" else Interactions.from_moebius(0 * effects)
    labels = inputs.y % 4
    for random in (False, True):
        penalty = Penalty(Inputs(inputs.x, labels), variables, dead, states=states, random=random)
        term = penalty(1, model)
        assert 0 <= term.item() <= (0 if "constant" in kind else 1)
        if term.requires_grad:
            assert all(g.isfinite().all() for g in gradient(model, term))


def test_outputs_that_are_no_numbers_are_refused(images):
    _, inputs, variables, baseline = images
    model = Made(lambda x: x.log() * torch.inf)
    with pytest.raises((FloatingPointError, ValueError), match="NaN|infinite"):
        Penalty(Inputs(inputs.x, inputs.y % 4), variables, baseline)(1, model)


@pytest.mark.parametrize(
    "wrong, told",
    [
        ({"every": 0}, "every=0"),
        ({"samples": 0}, "samples=0"),
        ({"states": 0}, "states=0"),
        ({"strength": -1.0}, "strength=-1"),
        ({"baselines": []}, "0 baselines"),
        ({"variables": symgen.draw_patches(2, n=N)}, "variables of 2"),
    ],
)
def test_what_cannot_be_is_refused(images, wrong, told):
    _, inputs, variables, baseline = images
    given = {"inputs": inputs, "variables": variables, "baselines": baseline, **wrong}
    with pytest.raises(ValueError, match=told):
        Penalty(**given)


# In loops --------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SYMGEN_CACHE", str(tmp_path / "cache"))


def test_the_term_is_there_in_every_kth_step_and_then_k_times_as_strong(images):
    model, inputs, variables, baseline = images
    each, third = (Penalty(inputs, variables, baseline, every=k) for k in (1, 3))
    assert [third(step, model) is None for step in range(1, 7)] == [True, True, False] * 2
    assert third(6, model).item() == pytest.approx(3 * each(6, model).item())
    assert each(6, model).item() == each(6, model).item()
    assert len({each(step, model).item() for step in range(12)}) > 1  # of other samples


def test_a_training_takes_it_stores_under_its_settings_and_resumes(images, cache, monkeypatch):
    _, inputs, variables, baseline = images
    data = load_dataset("digits", train_size=100, test_size=50)
    settings = {"epochs": 4, "checkpoints": 4, "progress": False, "options": {"width": 4}}
    plain = train("cnn", data, **settings)
    penalty = Penalty(inputs, variables, baseline, samples=2, strength=0.5, every=2)
    whole = train("cnn", data, term=penalty, **settings)
    weights = whole.load().state_dict()
    assert not all(torch.equal(x, weights[k]) for k, x in plain.load().state_dict().items())
    others = {"strength": 0.6, "every": 3, "samples": 3, "states": 2, "random": True, "seed": 1}
    assert whole.fingerprint != plain.fingerprint
    for name, value in others.items():
        changed = Penalty(inputs, variables, baseline, **{"samples": 2, "every": 2, name: value})
        assert fingerprint(changed.key) != fingerprint(penalty.key), name
    again = train("cnn", data, term=Penalty(inputs, variables, baseline, samples=2, strength=0.5,
                                            every=2), **settings)  # fmt: skip
    assert again.fingerprint == whole.fingerprint

    # Stopped in the middle, and taken up.
    class Stopped(Exception):
        pass

    step, last = Loop.step, whole.steps[-1] - 1

    def stopping(self, number, *arguments):
        if number == last and self.stored.steps == tuple(whole.steps):
            raise Stopped
        return step(self, number, *arguments)

    for path in whole.folder.iterdir():
        path.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "step", stopping)
        with pytest.raises(Stopped):
            train("cnn", data, term=penalty, **settings)
    resumed = train("cnn", data, term=penalty, **settings)
    assert all(torch.equal(x, weights[k]) for k, x in resumed.load().state_dict().items())


def test_training_with_it_lowers_what_it_penalizes(images, cache):
    _, inputs, variables, baseline = images
    data = load_dataset("digits", train_size=100, test_size=50)
    settings = {"epochs": 20, "checkpoints": 1, "progress": False, "options": {"width": 4}}
    found = []
    for strength in (0.0, 3.0):
        term = Penalty(inputs, variables, baseline, strength=strength)
        model = train("cnn", data, term=term, **settings).load()
        found.append(Penalty(inputs, variables, baseline, samples=POOL)(1, model).item())
    assert found[1] < 0.7 * found[0], found


def test_it_goes_into_a_loop_of_accelerate(images):
    from accelerate import Accelerator

    model, inputs, variables, baseline = images
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    penalty = Penalty(inputs, variables, baseline)
    x, y = (to_device(each, accelerator.device) for each in inputs)
    model, given = copy.deepcopy(model), [p.detach().clone() for p in model.parameters()]
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for step in (1, 2):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss = loss + penalty(step, accelerator.unwrap_model(model))
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    assert all(p.isfinite().all() for p in model.parameters())
    assert any(not torch.equal(p, q) for p, q in zip(model.parameters(), given, strict=True))


def test_it_goes_into_the_trainer_of_transformers(texts, tmp_path):
    transformers = pytest.importorskip("transformers")
    network, inputs, variables, baseline, token = texts
    penalty = Penalty(inputs, variables, baseline, token, samples=2, every=2)
    added = []

    class Penalized(transformers.Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, **options):
            found = super().compute_loss(model, inputs, return_outputs=True, **options)
            more = penalty(self.state.global_step + 1, self.accelerator.unwrap_model(model))
            added.append(None if more is None else more.item())
            loss = found[0] if more is None else found[0] + more
            return (loss, found[1]) if return_outputs else loss

    rows = [
        {"input_ids": ids, "attention_mask": mask, "labels": label}
        for ids, mask, label in zip(*inputs.x.values(), inputs.y, strict=True)
    ]
    options = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=4, per_device_train_batch_size=2, report_to=[],
        save_strategy="no", use_cpu=True, disable_tqdm=True, logging_strategy="no",
        dataloader_pin_memory=False,
    )  # fmt: skip
    model = copy.deepcopy(network).model
    Penalized(model, options, train_dataset=rows).train()
    assert [x is None for x in added] == [True, False] * 2 and max(added[1::2]) > 0
    assert all(p.isfinite().all() for p in model.parameters())
