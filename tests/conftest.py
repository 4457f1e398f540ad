"""Every test sees eight emulated CPU devices and its own empty user cache."""

import ctypes
import fcntl
import gc
import logging
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ["JAX_PLATFORMS"] = os.environ.get("MAXTRAIN_TEST_PLATFORM", "cpu")
os.environ["JAX_NUM_CPU_DEVICES"] = "8"
os.environ.setdefault("MPLBACKEND", "agg")

ROOT = Path(__file__).parent.parent

# Tests compile much and run little: compile fast and keep what is compiled. (Collectives: see parallel.emulation.)
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_enable_concurrency_optimized_scheduler=false --xla_cpu_experimental_ynn_fusion_type= "
    "--xla_cpu_use_fusion_emitters=false",
)
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(ROOT / ".pytest_cache" / "compiled")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"


_GROWTH = 2**29
"""Bytes that a worker may grow by before it forgets what it has compiled; two of them are to stay under 6 GB."""
_kept = 2**29


@pytest.fixture(autouse=True)
def forget_compiled_programs():
    """Give back the memory of compiled programs, which would add up over the tests."""
    global _kept
    yield
    if _resident_bytes() > _kept + _GROWTH and "jax" in sys.modules:
        sys.modules["jax"].clear_caches()
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        _kept = _resident_bytes()


def _resident_bytes() -> int:
    with Path("/proc/self/statm").open() as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(scope="module")
def make_bucket() -> Iterator[Callable[[str], Any]]:
    """An S3 server of the test's own; the function makes a bucket there and gives its key-value store."""
    import tensorstore
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # the server runs in this process
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"

    def make(bucket: str) -> Any:
        urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{bucket}", method="PUT")).close()
        spec = {"driver": "s3", "bucket": bucket, "endpoint": endpoint, "aws_region": "us-east-1"}
        return tensorstore.KvStore.open(spec).result()

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", endpoint)
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        yield make
    server.stop()


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


@pytest.fixture(scope="session")
def sample_dataset(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample corpus as a dataset, built once for all workers."""
    shared_folder = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        shared_folder = shared_folder.parent
    output = shared_folder / "sample"
    with (shared_folder / "sample.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run(
            [sys.executable, "-m", "maxtrain.corpus", "build", "data/recipes/sample.yaml", "--output", str(output)],
            cwd=root,
            check=True,
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
    return output
