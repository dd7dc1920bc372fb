"""Draw the explorer with an installed symgen; fail if it comes from the checkout or is empty."""

import sys
from pathlib import Path

import torch

import symgen
from symgen import figures

assert not Path(symgen.__file__).is_relative_to(sys.argv[1]), symgen.__file__
v = torch.randn(1, 2**4, dtype=torch.float64)
shown = figures.explorer(v[0], symgen.sparsify(v)[0])
markup = shown._repr_mimebundle_()["text/html"]
assert "symgen-explorer" in markup and "<script" in markup and "<style" in markup, markup[:500]
print(f"symgen {symgen.__version__} draws the explorer")
