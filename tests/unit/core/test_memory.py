import platform
import subprocess
import sys

import pytest

_REUSE = """
import resource, sys
import numpy as np
from maxtrain.core.memory import keep_freed_memory

keep_freed_memory()
np.ones(2**24)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
np.ones(2**24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's allocator is told")
def test_freed_memory_is_used_again():
    done = subprocess.run([sys.executable, "-c", _REUSE], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 2**27 / 4096 / 100, "128 MiB are fetched anew"
