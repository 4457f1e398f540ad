"""Every test sees eight emulated CPU devices and its own empty user cache."""

import os
from pathlib import Path

import pytest

os.environ["JAX_PLATFORMS"] = os.environ.get("MAXTRAIN_TEST_PLATFORM", "cpu")
os.environ["JAX_NUM_CPU_DEVICES"] = "8"
os.environ.setdefault("MPLBACKEND", "agg")

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository's root."""
    return ROOT


@pytest.fixture(scope="session")
def shared(root: Path) -> Path:
    """The folder of shared test material beside the checkout; tests that need it skip where it is absent."""
    path = Path(os.environ.get("MAXTRAIN_SHARED", root.parent / "shared"))
    if not path.is_dir():
        pytest.skip(f"shared test material is absent: {path}")
    return path
