"""Outputs of a small trained network on masked images: what the solvers are measured on."""

import functools
import os

import torch
from torch import Tensor, nn

import symgen
from symgen.data.datasets import Data


@functools.cache
def network() -> tuple[Data, nn.Module]:
    """Return the data and a small network trained on them for a minute at most.

    CIFAR-10 where `SYMGEN_DATA` names a folder that holds it, scikit-learn's digits elsewhere.
    """
    if os.environ.get("SYMGEN_DATA"):
        data = symgen.load_dataset("uoft-cs/cifar10", train_size=2000, test_size=200)
    else:
        data = symgen.load_dataset("digits")
    run = symgen.train("cnn", data, epochs=8, checkpoints=1, progress=False)
    return data, run.load()


@functools.cache
def outputs(n: int, samples: int) -> Tensor:
    """Return v (samples, 2**n) of test samples, n patches of the first feature map masked."""
    data, model = network()
    x, y = data.parts["test"].batch(torch.arange(samples))
    value = symgen.mean_feature(model, data.parts["target"].batch(torch.arange(500))[0])
    variables = symgen.draw_patches(samples, n=n)
    return symgen.masked_outputs(model, x, y, variables, value, progress=False)
