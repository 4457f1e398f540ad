"""Every rule by name, in the order in which they run, and the recipe's section that holds them."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, create_model

from maxtrain.config.schema import Section
from maxtrain.corpus.clean import CLEAN_RULES
from maxtrain.corpus.length import Length
from maxtrain.corpus.rules import Rule
from maxtrain.corpus.safety import Domains, Licence, OptOut, Pii, Toxicity
from maxtrain.corpus.score import SCORE_RULES

RULES: tuple[type[Rule], ...] = (
    Length,
    OptOut,
    Licence,
    Domains,
    *CLEAN_RULES,
    *SCORE_RULES,
    Toxicity,
    Pii,
)
"""In running order; a recipe switches them on and off, and does not change the order."""
NAMES = tuple(rule.name for rule in RULES)


def _from_switch(value: Any) -> Any:
    return {} if value is True else None if value is False else value


_FIELDS: dict[str, Any] = {
    rule.name: (
        Annotated[rule | None, BeforeValidator(_from_switch)],
        Field(
            None, description=f"{(rule.__doc__ or '').splitlines()[0]} True for the defaults, null for no such rule."
        ),
    )
    for rule in RULES
}
RulesConfig: type[Section] = create_model("RulesConfig", __base__=Section, **_FIELDS)
RulesConfig.__doc__ = "Rules about single documents, by name; a rule that is not named does not run."


def rules_of(config: Section) -> list[Rule]:
    """The rules that a `RulesConfig` switches on, in running order."""
    found = [getattr(config, name) for name in NAMES]
    return [rule for rule in found if rule is not None]
