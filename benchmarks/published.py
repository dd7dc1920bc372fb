"""The transforms of the published procedure as the matrices they are in its own code.

The procedure itself is `symgen.split.published`, with fast transforms, which changes nothing but
the time.
"""

import contextlib
from collections.abc import Iterator
from unittest import mock

import torch

from symgen import moebius
from symgen.split import published


@contextlib.contextmanager
def dense(n: int) -> Iterator[None]:
    """Let the published procedure multiply by 2**n x 2**n matrices, as published."""
    matrix = moebius(torch.eye(2**n)).T.contiguous()
    with (
        # Only the last transform, which is no step, is in double precision.
        mock.patch.object(published, "moebius", lambda u: u @ matrix.T.to(u)),
        mock.patch.object(published, "moebius_adjoint", lambda mu: mu @ matrix),
    ):
        yield
