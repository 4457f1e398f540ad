"""The recipe: which files become which dataset, and how."""

from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, field_validator, model_validator

from maxtrain.config.load import validate_tree
from maxtrain.config.merge import load_source
from maxtrain.config.schema import Section
from maxtrain.config.schema.types import AsTuple, Fraction, NonNegativeSize, PositiveCount, PositiveInt, as_float
from maxtrain.corpus.decontaminate.rule import Decontaminate
from maxtrain.corpus.dedup import DuplicatesConfig
from maxtrain.corpus.read import ReadOptions
from maxtrain.corpus.registry import NAMES, RulesConfig
from maxtrain.dataset import TRAIN_SPLIT
from maxtrain.tokenizer.train import MOST_IDS

_Files = Annotated[tuple[str, ...], AsTuple, Field(min_length=1)]


class DefaultTags(Section):
    """Tags of records that have none of their own."""

    source: str | None = None
    """Null: the file's name without its endings."""
    lang: str = "und"
    """Language."""
    category: str = "unknown"
    """Category."""


class InputConfig(Section):
    """Some input files."""

    files: str | _Files
    """Paths or patterns, relative to the recipe; ** reaches into folders; or URLs."""
    licence: str
    """Licence of records that state none in a field `licence`."""
    tags: DefaultTags = DefaultTags()
    """Tags of records that have none of their own."""
    read: ReadOptions = ReadOptions()
    """How the files are read: kind, keys, limits."""
    without: Annotated[tuple[str, ...], AsTuple] = ()
    """Names of rules that these files are spared."""

    @field_validator("without")
    @classmethod
    def _rules_exist(cls, without: tuple[str, ...]) -> tuple[str, ...]:
        for name in without:
            if name not in NAMES:
                near = get_close_matches(name, NAMES, n=1, cutoff=0.5)
                raise ValueError(f"no rule {name}; {f'did you mean {near[0]}?' if near else ', '.join(NAMES)}")
        return without

    def patterns(self) -> tuple[str, ...]:
        """Paths or patterns."""
        return (self.files,) if isinstance(self.files, str) else self.files


class TokenizerTraining(Section):
    """Train a tokenizer on the documents of the train split."""

    vocab_size: Annotated[PositiveCount, Field(le=MOST_IDS)]
    """Number of ids, special tokens included."""
    sample_bytes: PositiveCount = 100_000_000
    """Bytes of text to train on at most, sampled by hash."""
    character_coverage: Annotated[float, BeforeValidator(as_float), Field(ge=0.98, le=1)] = 0.9995
    """Share of characters, 0.98 to 1, that get a piece of their own; the rest fall back to bytes."""
    reserved: PositiveInt = 60
    """Reserved special tokens."""


class TokenizerConfig(Section):
    """The tokenizer: an existing one, or one trained on the inputs."""

    path: str | None = None
    """Model file, relative to the recipe."""
    train: TokenizerTraining | None = None
    """Train one."""

    @model_validator(mode="after")
    def _one(self) -> "TokenizerConfig":
        if (self.path is None) == (self.train is None):
            raise ValueError("needs exactly one of path and train")
        return self


class Recipe(Section):
    """How a dataset is built."""

    output: str
    """Directory of the dataset, relative to the recipe."""
    inputs: Annotated[tuple[InputConfig, ...], AsTuple, Field(min_length=1)]
    """Input files with their licences."""
    tokenizer: TokenizerConfig
    """The tokenizer."""
    splits: dict[str, Fraction] = Field(default={})
    """Held-out shares by name, chosen by a hash of the document's id; the rest is `train`."""
    add_bos: bool = False
    """Write bos before each document."""
    shard_tokens: PositiveCount = 2**27
    """Most tokens in a shard."""
    rules: RulesConfig = RulesConfig()  # type: ignore[valid-type]
    """Rules about single documents, by name; true for a rule's defaults."""
    dedup: DuplicatesConfig | None = None
    """Duplicates, which are left out; null to keep them, where two records of one identity are an error."""
    decontaminate: Decontaminate | None = None
    """The evaluation list, which documents may not touch; `index` is relative to the recipe, `counts` for the build."""
    samples: NonNegativeSize = 20
    """Documents of each rule and reason that are kept to look at, before and after it."""

    @field_validator("splits")
    @classmethod
    def _splits_fit(cls, splits: dict[str, float]) -> dict[str, float]:
        if TRAIN_SPLIT in splits:
            raise ValueError(f"{TRAIN_SPLIT} is what the other splits leave; delete it")
        if sum(splits.values()) >= 1:
            raise ValueError("the splits leave nothing to train on; their shares must add up to less than 1")
        return splits


def load_recipe(path: str | Path) -> Recipe:
    """Read and validate a recipe, with what it extends.

    Raises:
        UserError: a file cannot be read or extends itself, or (ConfigError) the recipe breaks the schema, with every
            violation at once.
    """
    return validate_tree(Recipe, load_source(path))
