"""A JSON Schema of config files, for editors and other programs."""

from typing import Any

from maxtrain.config.merge import EXTENDS
from maxtrain.config.schema import Config


def _relax(schema: dict[str, Any]) -> None:
    """Let a file state only its difference from what it extends."""
    schema.pop("required", None)
    for name, inner in schema.get("properties", {}).items():
        if name != "mixture":
            continue
        for holder in (inner, *inner.get("anyOf", ())):
            for domain in holder.pop("patternProperties", {}).values():
                holder["additionalProperties"] = {"anyOf": [domain, {"type": "null"}]}


def editor_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a config file.

    Counts may be written with a suffix; nothing is required, for a file may extend another; a domain may be null,
    which removes it.
    """
    schema = Config.model_json_schema()
    for section in (schema, *schema["$defs"].values()):
        _relax(section)
    extends = {"type": "string", "description": "Config file that this one extends, relative to it."}
    schema["properties"] = {EXTENDS: extends, **schema["properties"]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "maxtrain config"}
