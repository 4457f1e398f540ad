import pytest

from maxtrain.corpus.read import BadRecord, RawRecord, ReadOptions, Source, read_file


@pytest.fixture
def read(tmp_path):
    """Write a file and read it: (good records, bad records)."""

    def read(name, data=None, on_read=None, **options):
        path = tmp_path / name
        if data is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data if isinstance(data, bytes) else data.encode())
        source = Source(name, str(path), "MIT", ReadOptions(**options))
        items = list(read_file(source, on_read))
        bad = [item for item in items if isinstance(item, BadRecord)]
        assert all(item.input == name for item in items)
        assert all(item.detail and "\n" not in item.detail for item in bad)
        good = [item for item in items if not isinstance(item, BadRecord)]
        for item in good:
            if isinstance(item, RawRecord):
                assert item.text.strip()
                item.text.encode()
        return good, bad

    return read


@pytest.fixture
def reasons():
    return lambda bad: [(item.line, item.reason) for item in bad]
