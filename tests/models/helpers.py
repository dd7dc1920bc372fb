"""Shared by the tests of networks: equal weights, and trainings that are interrupted."""

import torch

from symgen.models import loop


def same(a, b):
    """Whether two networks have the same weights, bit for bit."""
    pairs = zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    return all(torch.equal(x, y) for x, y in pairs)


def interrupt(monkeypatch, *at):
    """Stop trainings at some steps, once each, with a state stored after every step.

    Returns the list to which computed steps are added.
    """
    steps, original = [], loop.Loop.step
    monkeypatch.setattr(loop, "RESUME_SECONDS", 0)

    def step(self, number, x, y):
        steps.append(number)
        if number in at and steps.count(number) == 1:
            raise KeyboardInterrupt
        return original(self, number, x, y)

    monkeypatch.setattr(loop.Loop, "step", step)
    return steps
