from collections.abc import Callable
from pathlib import Path

import pytest

from maxtrain.config.yaml_files import dump, parse_text, read_mapping
from maxtrain.core.errors import UserError

WriteConfig = Callable[..., Path]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4),
        ("1E6", 1e6),
        ("5", 5),
        ("010", 10),
        ("no", "no"),
        ("off", "off"),
        ("1:30", "1:30"),
        ("true", True),
        ("~", None),
        ("", None),
        ("[1, a]", [1, "a"]),
        ("10T", "10T"),
    ],
)
def test_scalars_are_yaml_1_2(text: str, value: object) -> None:
    parsed = parse_text(text, "test")
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", r'run.yaml:3: found duplicate key "a"; keep one of the two'),
        ("a: 1\nb:\n  c: 1\n  c: 2\n", r'run.yaml:4: found duplicate key "c"'),
        ("a:\n\tb: 1\n", r"run.yaml:2: .*; correct the YAML there"),
        ("a: [1, 2\n", r"run.yaml:\d: .*; correct the YAML there"),
        ("a: 1\n---\nb: 2\n", r"run.yaml:\d: .*; correct the YAML there"),
        ("a: !!python/object/apply:os.system [ls]\n", r"run.yaml:1: could not determine a constructor.*"),
        ("a: 1\n  b: 2\n", r"run.yaml:2: .*"),
        ("a: 2026-02-30\n", r"run.yaml: day .*; quote the value if it is a text"),
        ("", r"run.yaml: is empty; a config is a mapping"),
        ("- 1\n", r"run.yaml: is a list; a config is a mapping"),
        ("a: {1: 2}\n", r"run.yaml:1: the key 1 is not a text; quote it"),
        ("a: 1\nb:\n  true: 2\n", r"run.yaml:3: the key true is not a text"),
        ("a: &x\n  b: *x\n", r"run.yaml:1: an alias contains itself"),
        ("a: \0\n", r"run.yaml: .*"),
        ("a: " + "[" * 500, r"run.yaml.*: .*"),
    ],
)
def test_every_fault_is_one_line_with_its_place(write: WriteConfig, text: str, message: str) -> None:
    path = write(text)
    with pytest.raises(UserError, match=message) as caught:
        read_mapping(path)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(str(path))


def test_text_that_is_not_utf8_and_folders_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(b"a: \xff\xfe\n")
    with pytest.raises(UserError, match=r"is not UTF-8 text \(byte 3\)"):
        read_mapping(path)
    with pytest.raises(UserError, match="Is a directory; name a readable YAML file"):
        read_mapping(tmp_path)


def test_lines_of_every_key(write: WriteConfig) -> None:
    _, lines = read_mapping(write("a: 1\nb:\n  c:\n    - d: 1\n    - 2\n"))
    assert lines == {"a": 1, "b": 2, "b.c": 3, "b.c.0": 4, "b.c.0.d": 4, "b.c.1": 5}


def test_dump_quotes_what_would_be_read_as_something_else() -> None:
    data = {
        "a": ["no", "1e3", "null", "true", "", "0x10", "10T", " b ", "中文", "x: y", "#"],
        "b": 1e-4,
        "c": None,
        "d": {},
    }
    assert parse_text(dump(data), "test") == data
    assert list(parse_text(dump({"z": 1, "a": 2}), "test")) == ["z", "a"]


def test_aliases_that_stand_for_millions_of_values_are_refused() -> None:
    levels = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9))
    with pytest.raises(UserError, match=r"bomb.yaml: its aliases stand for over 100,000 values"):
        parse_text("a0: &a0 [x]\n" + levels, "bomb.yaml")
