"""Showing, comparing, explaining and checking configs; no devices, no JAX."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from maxtrain.config.checks import check_config
from maxtrain.config.compare import diff_configs, diff_defaults, explain_key
from maxtrain.config.editor_schema import editor_schema
from maxtrain.config.load import to_plain, to_yaml, validate
from maxtrain.config.merge import load_source
from maxtrain.config.violations import ConfigError, Violation, show_value, with_origins
from maxtrain.core.errors import run_command

EPILOG = """\
examples:
  python -m maxtrain.config show configs/learning/first.yaml model.num_layers=6
  python -m maxtrain.config diff configs/learning/first.yaml configs/learning/dense.yaml
  python -m maxtrain.config diff configs/learning/first.yaml
  python -m maxtrain.config explain model.moe.balance
  python -m maxtrain.config explain schedule.lr configs/learning/first.yaml
  python -m maxtrain.config validate configs/production/moe_100b.yaml --devices 256
  python -m maxtrain.config schema --output config.schema.json

exit codes:
  0  done; validate: the config can run
  1  a file could not be read or written
  2  bad command line, unknown key, or a config with violations
"""


def _show(options: argparse.Namespace) -> None:
    config = validate(load_source(options.config, options.overrides))
    print(json.dumps(to_plain(config), indent=2, ensure_ascii=False) if options.json else to_yaml(config).rstrip())


def _diff(options: argparse.Namespace) -> None:
    first = load_source(options.config)
    if options.other is None:
        changed = diff_defaults(first)
    else:
        changed = diff_configs(validate(first), validate(load_source(options.other)))
    if options.json:
        print(json.dumps({path: {"before": old, "after": new} for path, (old, new) in changed.items()}, indent=2))
    else:
        lines = [f"{path}: {show_value(old)} -> {show_value(new)}" for path, (old, new) in changed.items()]
        print("\n".join(lines) or "no difference")


def _explanation(found: dict[str, Any]) -> str:
    lines = [f"{found['key']}: {found['doc']}", f"  type     {found['type']}"]
    if "default" in found:
        lines.append(f"  default  {show_value(found['default'])}")
    if "value" in found and "keys" not in found:
        lines.append(f"  value    {show_value(found['value'])}")
    if "origin" in found:
        lines.append(f"  from     {found['origin']}")
    for inner in found.get("keys", ()):
        lines.append(f"  {inner['key']}: {inner['type']}; default {show_value(inner['default'])}. {inner['doc']}")
    return "\n".join(lines)


def _explain(options: argparse.Namespace) -> None:
    source = load_source(options.config, options.overrides) if options.config else None
    found = explain_key(options.key, source)
    print(json.dumps(found, indent=2, ensure_ascii=False) if options.json else _explanation(found))


def _schema(options: argparse.Namespace) -> None:
    text = json.dumps(editor_schema(), indent=2, ensure_ascii=False)
    if options.output is None:
        print(text)
    else:
        Path(options.output).write_text(text + "\n", encoding="utf-8")


def _validate(options: argparse.Namespace) -> None:
    source = load_source(options.config, options.overrides)
    violations: list[Violation] = []
    try:
        violations = with_origins(check_config(validate(source), options.devices), source.origins)
    except ConfigError as error:
        violations = list(error.violations)
    if options.json:
        fields = ("path", "limit", "cure", "origin")
        found = [{name: getattr(violation, name) for name in fields} for violation in violations]
        print(json.dumps({"valid": not violations, "violations": found}, indent=2, ensure_ascii=False))
    if violations:
        raise ConfigError(source.name, violations)
    if not options.json:
        print(f"{source.name}: valid")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of devices; give a whole number over 0")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m maxtrain.config",
        description="Show, compare, explain and check configs.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    show = commands.add_parser("show", help="print every key with its value, as YAML that can be loaded again")
    diff = commands.add_parser("diff", help="print the keys in which two configs, or a config and the defaults, differ")
    explain = commands.add_parser(
        "explain", help="print a key's meaning, type, limits and default, or a section's keys"
    )
    schema = commands.add_parser("schema", help="print a JSON Schema for editors")
    check = commands.add_parser("validate", help="check a config and tell all its violations at once")
    show.add_argument("config", help="YAML file")
    diff.add_argument("config", help="YAML file")
    diff.add_argument("other", nargs="?", help="YAML file to compare with; without it, the defaults")
    explain.add_argument("key", metavar="KEY", help="dotted key, such as schedule.lr")
    explain.add_argument("config", nargs="?", help="YAML file whose value and its origin are shown too")
    check.add_argument("config", help="YAML file")
    check.add_argument("--devices", type=_positive, help="devices of the run in all (default: mesh.devices)")
    schema.add_argument("--output", metavar="FILE", help="write to a file")
    for command in (show, explain, check):
        command.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="dotted overrides")
    for command in (show, diff, explain, check):
        command.add_argument("--json", action="store_true", help="print JSON")
    runs = {"show": _show, "diff": _diff, "explain": _explain, "schema": _schema, "validate": _validate}
    for name, command in commands.choices.items():
        command.set_defaults(run=runs[name])
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    # Overrides may stand after an option, which argparse does not allow below a subcommand.
    if any(word.startswith("-") for word in rest) or (rest and "overrides" not in options):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        options.overrides += rest
    return run_command(lambda: options.run(options))


if __name__ == "__main__":
    sys.exit(main())
