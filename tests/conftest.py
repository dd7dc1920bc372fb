"""Shared by all tests: checked shapes, fixed random examples, a temporary cache, one trained network."""

import os
import shutil
import tempfile
from pathlib import Path

import hypothesis
import pytest
from beartype import BeartypeConf, beartype
from jaxtyping import install_import_hook

# An integer is accepted for a float, as in Python itself.
checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
ROOT = Path(__file__).resolve().parent.parent
# Installed before symgen is imported: tests enforce its annotations, shapes included.
ROOMS = sorted({path.stem for path in (ROOT / "symgen").iterdir()} - {"__init__", "__main__"})
HOOK = install_import_hook([f"symgen.{name}" for name in ROOMS], "conftest.checked")

hypothesis.settings.register_profile("symgen", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("symgen")


def pytest_configure(config):
    # Set here and not in a fixture, so that kernels started by nbval and processes of xdist share it.
    if "PYTEST_XDIST_WORKER" not in os.environ:
        config.symgen_cache = tempfile.mkdtemp(prefix="symgen-cache-")
        os.environ["SYMGEN_CACHE"] = config.symgen_cache
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    for name in ("SYMGEN_DATA", "SYMGEN_OUT"):
        os.environ.pop(name, None)

    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 2)))


def pytest_unconfigure(config):
    if hasattr(config, "symgen_cache"):
        shutil.rmtree(config.symgen_cache, ignore_errors=True)


@pytest.fixture(scope="session")
def small_study():
    """A study whose three networks are trained once for all tests that need one."""
    import symgen

    return symgen.Study.of({"train_size": 200, "epochs": 6, "samples": 6, "n": 5, "checkpoints": 3})
