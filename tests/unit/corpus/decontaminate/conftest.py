import json

import pytest

from maxtrain.core.lines import iterate_lines


@pytest.fixture(scope="session")
def rows(shared):
    """Reads the rows of a file of the shared material."""

    def read(name):
        return [json.loads(line) for line in iterate_lines(shared / name)]

    return read
