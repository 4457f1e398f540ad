"""Parquet, Arrow and folders of Hugging Face data sets."""

import hashlib
import json
from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from maxtrain.core.errors import UserError
from maxtrain.corpus.read import ReadOptions, Source, fingerprint, read_file

ROWS: list[dict[str, Any]] = [
    {"id": n, "text": f"document {n} 文", "meta": {"a": n}, "url": f"https://a.example/{n}"} for n in range(1000)
]


def table(rows=None):
    return pa.Table.from_pylist(ROWS if rows is None else rows)


def parquet(rows=None, **options):
    sink = pa.BufferOutputStream()
    pq.write_table(table(rows), sink, row_group_size=100, **options)
    return sink.getvalue().to_pybytes()


def arrow(rows=None, file=False):
    sink = pa.BufferOutputStream()
    found = table(rows)
    with (pa.ipc.new_file if file else pa.ipc.new_stream)(sink, found.schema) as writer:
        writer.write_table(found, max_chunksize=100)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("name", "data"), [("a.parquet", parquet()), ("a.arrow", arrow()), ("a.arrow", arrow(file=True))]
)
def test_a_row_is_a_record(read, name, data):
    digest = hashlib.sha256()
    good, bad = read(name, data, digest.update)
    assert not bad
    assert [(item.line, item.text, item.original_id, item.url) for item in good] == [
        (row["id"] + 1, row["text"], str(row["id"]), row["url"]) for row in ROWS
    ]
    assert digest.hexdigest() == hashlib.sha256(data).hexdigest()


def test_columns_are_named_by_the_recipe_and_nested_ones_refused_by_name(read):
    rows = [{"content": b"by\xc3\xa4tes", "text": ["nested"], "code": "fr"}]
    good, _ = read("a.parquet", parquet(rows), text_key="content", columns={"lang": "code"})
    assert (good[0].text, good[0].lang) == ("byätes", "fr")
    with pytest.raises(UserError, match=r"^a\.parquet: column text is nested, list<.*such as content"):
        read("a.parquet")
    with pytest.raises(UserError, match=r"^a\.parquet: no column body; .*columns: content, text, code"):
        read("a.parquet", text_key="body")
    with pytest.raises(ValueError, match="no tag language"):
        ReadOptions(columns={"language": "x"})


def test_kinds_of_text_columns(read):
    texts = ["eins", "zwei", "eins", None]
    for kind in (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string()), pa.binary()):
        sink = pa.BufferOutputStream()
        found = pa.table({"text": pa.array(texts, pa.string()).cast(kind)})
        with pa.ipc.new_stream(sink, found.schema) as writer:
            writer.write_table(found)
        good, bad = read("a.arrow", sink.getvalue().to_pybytes())
        assert [item.text for item in good] == texts[:3]
        assert [(item.line, item.reason) for item in bad] == [(4, "missing_text")]


def test_a_bad_row_is_one_bad_record(read, reasons):
    values = [b"good", b"bad \xff", b"  ", b"x" * 200, b"good"]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": pa.array(values, pa.binary())}), sink)
    good, bad = read("a.parquet", sink.getvalue().to_pybytes(), max_record_bytes=100)
    assert [item.line for item in good] == [1, 5]
    assert reasons(bad) == [(2, "invalid_utf8"), (3, "empty_text"), (4, "too_long")]


def test_a_damaged_row_group_is_told_and_the_others_are_read(read):
    data = bytearray(parquet(compression="zstd", use_dictionary=False))
    chunk = pq.ParquetFile(pa.BufferReader(bytes(data))).metadata.row_group(4).column(1)
    start = chunk.data_page_offset + 25
    data[start : start + 40] = b"\xff" * 40
    good, bad = read("a.parquet", bytes(data))
    assert len(good) == 900
    assert [(item.line, item.reason) for item in bad] == [(401, "damaged_parquet")]
    assert "row group 4" in bad[0].detail
    assert "100 rows" in bad[0].detail
    assert good[-1].line == 1000


def test_truncated_tables_are_told(read, reasons):
    assert reasons(read("a.parquet", parquet()[:-100])[1]) == [(1, "damaged_parquet")]
    data = arrow()
    good, bad = read("a.arrow", data[: len(data) // 2])
    assert 0 < len(good) < 1000
    assert reasons(bad) == [(len(good) + 1, "damaged_arrow")]


@pytest.fixture
def saved(tmp_path):
    """A data set with splits, as save_to_disk leaves it."""
    for split, rows in (("train", ROWS[:500]), ("test", ROWS[500:])):
        folder = tmp_path / "d" / split
        folder.mkdir(parents=True)
        names = []
        for number in range(2):
            name = f"data-{number:05}-of-00002.arrow"
            (folder / name).write_bytes(arrow(rows[number::2]))
            names.append({"filename": name})
        (folder / "state.json").write_text(json.dumps({"_data_files": names, "_split": split}))
        (folder / "dataset_info.json").write_text("{}")
    (tmp_path / "d" / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    return tmp_path / "d"


def folder_items(path, **options):
    source = Source("d", str(path), "MIT", ReadOptions(kind="huggingface", **options))
    digest = hashlib.sha256()
    items = list(read_file(source, digest.update))
    assert digest.hexdigest() == fingerprint(source)
    return items


def test_saved_data_sets_are_read_by_split(saved):
    assert Counter(item.original_id for item in folder_items(saved)) == Counter(str(n) for n in range(1000))
    items = folder_items(saved, split="test")
    assert [item.line for item in items] == list(range(1, 501))
    assert {int(item.original_id) >= 500 for item in items} == {True}
    assert len(folder_items(saved / "train")) == 500
    with pytest.raises(UserError, match="d: no split dev; it has train, test"):
        folder_items(saved, split="dev")


def test_a_folder_of_data_files_is_read_in_order_of_names(tmp_path):
    root = tmp_path / "f"
    (root / "data").mkdir(parents=True)
    (root / "README.md").write_text("---\nlicense: mit\n---\n")
    (root / "data" / "train-00000-of-00001.parquet").write_bytes(parquet(ROWS[:10]))
    (root / "data" / "test.jsonl").write_text('{"text": "t"}\n{\n')
    items = folder_items(root)
    assert [item.line for item in items] == list(range(1, 13))
    assert items[1].reason == "not_json"
    assert len(folder_items(root, split="train")) == 10
    with pytest.raises(UserError, match="no data file of a split dev"):
        folder_items(root, split="dev")
    (root / "data" / "train-00000-of-00001.parquet").write_bytes(b"PAR1 broken")
    assert [item.reason for item in folder_items(root) if hasattr(item, "reason")] == ["not_json", "damaged_parquet"]


def test_a_folder_never_leads_out_of_itself(saved, tmp_path):
    (tmp_path / "secret.arrow").write_bytes(arrow())
    state = saved / "train" / "state.json"
    for name in ("../../secret.arrow", "/etc/passwd", "gone.arrow", 3, ".."):
        state.write_text(json.dumps({"_data_files": [{"filename": name}]}))
        with pytest.raises(UserError, match=r"^d/train: state\.json names"):
            folder_items(saved)
    (saved / "dataset_dict.json").write_text(json.dumps({"splits": ["../.."]}))
    assert folder_items(saved) == []
    state.write_text("{")
    with pytest.raises(UserError, match=r"state\.json is damaged"):
        folder_items(saved / "train")
    with pytest.raises(UserError, match="d: no dataset here"):
        folder_items(tmp_path / "empty") if (tmp_path / "empty").mkdir() is None else None
    with pytest.raises(UserError, match="no such folder"):
        folder_items(tmp_path / "none")
