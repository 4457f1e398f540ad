"""Texts by language that small models of characters are made from; free of rights."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from maxtrain.core.records import parse_record, record_lines

ROOT = Path(__file__).parent.parent.parent
_UDHR = "public domain (UDHR texts"


def texts_by_language(paths: Sequence[str], sample: Mapping[str, str]) -> dict[str, list[str]]:
    """The Universal Declaration of Human Rights in files of tagged JSON lines, and parts of the sample corpus.

    Args:
        paths: files, of which records of other licences are passed over.
        sample: file in data/sample, without its endings, and the language that it is told as.
    """
    texts: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        for _, line in record_lines(path):
            record = parse_record(line)
            if record["licence"].startswith(_UDHR):
                texts[record["lang"]].append(record["text"])
    for name, lang in sample.items():
        for _, line in record_lines(ROOT / "data" / "sample" / f"{name}.jsonl.zst"):
            texts[lang].append(parse_record(line)["text"])
    return texts
