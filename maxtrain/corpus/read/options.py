"""How an input is read: the recipe's section, the kinds of inputs and how they are told by name."""

from typing import Annotated, Literal, get_args

from pydantic import Field, field_validator, model_validator

from maxtrain.config.schema import Section
from maxtrain.config.schema.types import AsTuple, NonNegativeInt, PositiveCount
from maxtrain.core.errors import UserError

Kind = Literal[
    "jsonl", "parquet", "arrow", "text", "markdown", "html", "latex", "warc", "wet", "wiki", "forum", "code",
    "huggingface", "megatron", "token_array",
]  # fmt: skip
KINDS: tuple[str, ...] = get_args(Kind)
FOLDER_KINDS = ("code", "huggingface")
"""Kinds whose input is a folder; a source tree may be a tar archive, too."""
TOKEN_KINDS = ("megatron", "token_array")
"""Kinds that hold token ids instead of text."""
TAGS = ("source", "lang", "category", "licence", "origin", "quality_score")
"""Tags that a record may state itself."""
COMPRESSIONS = (".gz", ".zst", ".bz2", ".xz")
ENDINGS: dict[str, str] = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".arrow": "arrow", ".txt": "text",
    ".md": "markdown", ".markdown": "markdown", ".html": "html", ".htm": "html", ".xhtml": "html", ".tex": "latex",
    ".warc": "warc", ".wet": "wet", ".bin": "megatron", ".npy": "token_array", ".tar": "code", ".tgz": "code",
}  # fmt: skip
"""Kind of a file by the end of its name, that of a compression left away."""
_UNCOMPRESSED_ONLY = ("parquet", "arrow", "megatron", "token_array")


class TokensConfig(Section):
    """What the recipe declares of token ids that are taken in without encoding."""

    tokenizer_sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    """Hash of the tokenizer that made them; they are refused where it is not the recipe's."""
    vocab_size: PositiveCount
    """Ids of that tokenizer; a document with one beyond goes to quarantine."""
    eod_id: NonNegativeInt
    """Id that ends a document; it is not kept."""
    bos_id: NonNegativeInt | None = None
    """Id that may begin a document; it is not kept."""
    dtype: Literal["uint16", "uint32", "int32", "int64"] = "uint16"
    """Type of the ids in an array without a header."""


class ReadOptions(Section):
    """How some input files are read."""

    kind: Kind | None = None
    """Kind of the files; null: by the end of their name."""
    text_key: Annotated[str, Field(min_length=1)] = "text"
    """Field or column that holds the text."""
    id_key: str = "id"
    """Field or column that holds the record's id, where there is one."""
    url_key: str = "url"
    """Field or column that holds the address, where there is one."""
    title_key: str = "title"
    """Field or column that holds the title, where there is one."""
    columns: dict[str, str] = Field(default={})
    """Fields or columns of the tags, where they are not named like the tag."""
    split: str | None = None
    """Hugging Face folders: the split to read; null: all."""
    documents: Literal["file", "paragraphs", "separator"] = "file"
    """Plain text: a document a file, a paragraph between blank lines, or between lines that equal `separator`."""
    separator: Annotated[str, Field(min_length=1)] = "<|endoftext|>"
    """Plain text: the line between two documents."""
    charset: str | None = None
    """Plain text, Markdown, LaTeX and HTML: charset of the files; null: found out."""
    html: Literal["main", "quality", "all", "markup"] = "main"
    """HTML: its main text, the same by trafilatura, all text, or the markup, for the rule `raw_html`."""
    namespaces: Annotated[tuple[int, ...], AsTuple] = (0,)
    """Wiki dumps: numbers of the namespaces to read."""
    languages: Annotated[tuple[str, ...], AsTuple] = ()
    """Source trees: programming languages to read; empty: all that are known."""
    max_record_bytes: PositiveCount = 2**24
    """Most bytes of one record, decompressed; a longer one goes to quarantine."""
    tokens: TokensConfig | None = None
    """Token ids: what made them; needed for the kinds that hold them."""

    def column(self, tag: str) -> str:
        """Field or column of a tag."""
        return self.columns.get(tag, tag)

    @field_validator("columns")
    @classmethod
    def _tags_exist(cls, columns: dict[str, str]) -> dict[str, str]:
        if unknown := sorted(columns.keys() - set(TAGS)):
            raise ValueError(f"no tag {unknown[0]}; the tags are {', '.join(TAGS)}")
        return columns

    @model_validator(mode="after")
    def _fits(self) -> "ReadOptions":
        if self.kind in TOKEN_KINDS and self.tokens is None:
            raise ValueError(f"kind {self.kind} needs the section tokens, which declares the tokenizer that made them")
        return self


def strip_compression(name: str) -> tuple[str, str]:
    """A file's name without the ending of its compression, and that ending."""
    for ending in COMPRESSIONS:
        if name.lower().endswith(ending):
            return name[: -len(ending)], ending
    return name, ""


def kind_by_name(name: str) -> str | None:
    """Kind of a file by its name, None where it tells none."""
    base, compression = strip_compression(name.rsplit("/", 1)[-1].lower())
    if base.endswith(".xml"):
        if base == "posts.xml" or base.endswith("-posts.xml"):
            return "forum"
        return "wiki" if "wik" in base or "pages-" in base else None
    kind = next((kind for ending, kind in ENDINGS.items() if base.endswith(ending)), None)
    return None if compression and kind in _UNCOMPRESSED_ONLY else kind


def kind_of(name: str, options: ReadOptions) -> str:
    """Kind of an input, as the recipe tells or by its name.

    Raises:
        UserError: neither tells a kind, or the kind needs what the recipe does not declare.
    """
    kind = options.kind or kind_by_name(name)
    if kind is None:
        raise UserError(
            f"{name}: no kind of input is told by this name; read.kind names one of {', '.join(KINDS)}, or use "
            f"files that end with {' '.join(ENDINGS)}, plain or with {' '.join(COMPRESSIONS)}"
        )
    if kind in TOKEN_KINDS and options.tokens is None:
        raise UserError(
            f"{name}: holds token ids, kind {kind}; declare read.tokens with the hash of the tokenizer that made them"
        )
    if kind in _UNCOMPRESSED_ONLY and strip_compression(name)[1]:
        raise UserError(f"{name}: kind {kind} is read at random places and cannot be compressed; decompress the file")
    return kind
