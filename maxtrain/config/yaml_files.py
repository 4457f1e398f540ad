"""YAML 1.2 in and out: a doubled key is an error, `3e-4` a number, `no` a text; every error names its line."""

from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML, MappingNode, Node, SequenceNode
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from maxtrain.core.errors import UserError

_MOST_VALUES = 100_000
REPLACE_TAG = "!replace"
"""Tag of a mapping that takes the place of the one it would be merged into."""


class Replaced(dict[str, Any]):
    """A mapping that was tagged `!replace`."""


class _Constructor(SafeConstructor):
    """The safe constructor and the one tag of our own."""

    def construct_replaced(self, node: Node) -> Iterator[Replaced]:
        data = Replaced()
        yield data
        data.update(self.construct_mapping(node, deep=True))


_Constructor.add_constructor(REPLACE_TAG, _Constructor.construct_replaced)


def _yaml() -> YAML:
    yaml = YAML(typ="safe", pure=True)
    yaml.Constructor = _Constructor
    return yaml


def _message(error: YAMLError) -> tuple[int | None, str]:
    """Line number, from 1, and the problem in one line."""
    if isinstance(error, MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        problem = str(error.problem or error.context or "is not YAML").strip().splitlines()[0]
        problem = problem.partition(' with value "')[0]  # ruamel shows "{}" for every mapping
        return (mark.line + 1 if mark else None), problem
    return None, " ".join(str(error).split())


def parse_text(text: str, name: str) -> Any:
    """Parse one YAML document.

    Raises:
        UserError: the text is not YAML 1.2, holds a doubled key or an unknown tag; with `name:line`.
    """
    return _parse(text, name)[0]


def _parse(text: str, name: str) -> tuple[Any, Node | None]:
    """The data of one document, and the node that it was made of; errors as in `parse_text`."""
    yaml = _yaml()
    try:
        node = yaml.compose(text)
        if node is None:
            return None, None
        if _num_values(node, {}) > _MOST_VALUES:
            raise UserError(f"{name}: its aliases stand for over {_MOST_VALUES:,} values; write fewer out")
        return yaml.constructor.construct_document(node), node
    except YAMLError as error:
        line, problem = _message(error)
        where = name if line is None else f"{name}:{line}"
        cure = "keep one of the two" if "duplicate key" in problem else "correct the YAML there"
        raise UserError(f"{where}: {problem}; {cure}") from None
    except RecursionError:
        raise UserError(f"{name}: nested too deeply; a config has at most a few levels") from None
    except ValueError as error:  # such as a date that no calendar has
        raise UserError(f"{name}: {error}; quote the value if it is a text") from None


def _num_values(node: Node, known: dict[int, int]) -> int:
    """Values below a node, aliases written out; the inside of an alias that contains itself counts as none."""
    if id(node) not in known:
        known[id(node)] = 1
        children = node.value if isinstance(node, (MappingNode, SequenceNode)) else []
        inner = [part for child in children for part in (child if isinstance(child, tuple) else (child,))]
        known[id(node)] = 1 + sum(_num_values(part, known) for part in inner)
    return known[id(node)]


def _lines(node: Node, path: str, around: tuple[int, ...], name: str) -> Iterator[tuple[str, int]]:
    """Every key's path and line; a key that is no text, and an alias that contains itself, are refused."""
    line = node.start_mark.line + 1
    if id(node) in around:
        raise UserError(f"{name}:{line}: an alias contains itself; write the values out")
    around = (*around, id(node))
    if isinstance(node, MappingNode):
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not str(key.tag).endswith((":str", ":merge")):
                raise UserError(f"{name}:{line}: the key {key.value} is not a text; quote it if it is meant as a name")
            inner = f"{path}.{key.value}" if path else str(key.value)
            yield inner, line
            yield from _lines(value, inner, around, name)
    elif isinstance(node, SequenceNode):
        for index, value in enumerate(node.value):
            yield f"{path}.{index}", value.start_mark.line + 1
            yield from _lines(value, f"{path}.{index}", around, name)


def read_mapping(path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """Read a YAML file whose root is a mapping.

    Returns:
        The mapping, and the line (from 1) of every dotted key.

    Raises:
        UserError: the file cannot be read, is not YAML, or its root is no mapping.
    """
    name = str(path)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{name}: is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    except OSError as error:
        raise UserError(f"{name}: {error.strerror}; name a readable YAML file") from None
    data, node = _parse(text, name)
    if not isinstance(data, dict):
        kind = "empty" if data is None else f"a {type(data).__name__}"
        raise UserError(f"{name}: is {kind}; a config is a mapping of sections such as `model:`")
    assert node is not None, "a mapping has a node"
    return data, dict(_lines(node, "", (), name))


def dump(data: Any) -> str:
    """Write plain data as YAML, keys in the given order."""
    yaml = YAML(typ="safe", pure=True)
    settings: dict[str, Any] = {"default_flow_style": False, "sort_base_mapping_type_on_output": False, "width": 120}
    for name, value in settings.items():
        setattr(yaml, name, value)
    stream = StringIO()
    yaml.dump(data, stream)
    return stream.getvalue()
