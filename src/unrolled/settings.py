"""From files and overrides to a `Config`: defaults < preset < file < dotted overrides < flags.

The layers are plain nested mappings, merged before anything is validated, so that all problems are found at once.
Three rules make overriding feel natural:

- choosing another `type` of a union (`model.encoder.type=transformer`) forgets the old type's fields, unless a person
  set them: those are then reported;
- setting one end of training (`max_epochs`, `max_steps`, `minutes`) replaces the base's end instead of joining it;
- `none` empties a setting that may be empty.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from unrolled.config import Config
from unrolled.errors import ConfigError

__all__ = ["parse_override", "read_toml", "resolve", "to_toml", "toml_value"]

Tree = dict[str, Any]
ENDS = ("max_epochs", "max_steps", "minutes")


class Layer(NamedTuple):
    """Settings from one place: a file, or (`None`) the command line or a call, whose messages need no place."""

    file: str | Path | None
    tree: Tree


def resolve(
    base: Config | None = None,
    *,
    file: str | Path | None = None,
    overrides: Sequence[str] = (),
    flags: Mapping[str, object] | None = None,
) -> Config:
    """Merge all layers of settings and validate the result.

    Parameters
    ----------
    base : Config, optional
        What everything else changes: a preset, or the settings of a run; the defaults where it is absent.
    file : path, optional
        A TOML file.
    overrides : sequence of str
        Dotted assignments such as `model.encoder.hidden_size=256`; later ones win.
    flags : mapping, optional
        Dotted path to value, from command-line flags or Python; `None` values are left out.

    Raises
    ------
    ConfigError
        Naming every problem: its path, where it was set, what was expected, what was found, and what was meant.
    """
    base_tree = (base or Config()).model_dump(mode="json")
    layers = [] if file is None else [Layer(file, read_toml(file))]
    layers += [Layer(None, _nest(*parse_override(text))) for text in overrides]
    layers += [Layer(None, _nest(path, value)) for path, value in (flags or {}).items() if value is not None]
    wanted: Tree = {}
    for layer in layers:
        wanted = _merge(wanted, layer.tree)
    wanted = _normalise(wanted)
    merged = _merge(_make_room(base_tree, wanted), wanted)
    try:
        return Config.model_validate(merged)
    except ValidationError as error:
        raise ConfigError(_report(error, layers)) from None


def read_toml(file: str | Path) -> Tree:
    """Read a TOML file of settings; UTF-8, a byte-order mark is dropped."""
    try:
        return tomllib.loads(Path(file).read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not a TOML file: {error}") from None


def parse_override(text: str) -> tuple[str, object]:
    """Split `path.to.setting=value`; the value is TOML, or a bare word taken as a string."""
    path, equals, value = text.partition("=")
    path, value = path.strip(), value.strip()
    if not equals or not all(part.isidentifier() for part in path.split(".")):
        raise ConfigError(f"{text!r}: expected an override such as training.seed=1")
    try:
        return path, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return path, value


def to_toml(config: Config) -> str:
    """Write settings as TOML that `resolve(file=...)` reads back to the same `Config`; empty settings are left out."""
    return "\n".join(_toml_lines(config.model_dump(mode="json"), ())).lstrip("\n") + "\n"


# --- layers ----------------------------------------------------------------------------------------------------------


def _nest(path: str, value: object) -> Tree:
    for part in reversed(path.split(".")):
        value = {part: value}
    assert isinstance(value, dict)
    return value


def _merge(lower: Tree, upper: Tree) -> Tree:
    """Merge two trees; the upper one wins."""
    merged = dict(lower)
    for name, value in upper.items():
        old = merged.get(name)
        merged[name] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _make_room(base: Tree, wanted: Tree, path: str = "") -> Tree:
    """Take from the base what `wanted` replaces as a whole: other types of a union, and ends of training."""
    kept = dict(base)
    for name, value in wanted.items():
        here, old = f"{path}{name}", base.get(name)
        if isinstance(value, dict) and isinstance(old, dict):
            is_other_type = here in _known().unions and value.get("type", old["type"]) != old["type"]
            kept[name] = {} if is_other_type else _make_room(old, value, f"{here}.")
    if path == "training." and any(wanted.get(end) is not None for end in ENDS):
        kept = {name: value for name, value in kept.items() if name not in ENDS}
    return kept


def _normalise(tree: Tree, path: str = "") -> Tree:
    """Give `none` and comma-separated lists their meaning where a setting is optional or a list."""
    out: Tree = {}
    for name, value in tree.items():
        fields = _known().fields.get(f"{path}{name}", [])
        if isinstance(value, dict):
            value = _normalise(value, f"{path}{name}.")
        elif value == "none" and any(NoneType in get_args(field.annotation) for field in fields):
            value = None
        elif isinstance(value, str) and any(_is_list(field) for field in fields):
            value = [item.strip() for item in value.split(",")]
        out[name] = value
    return out


def _is_list(field: FieldInfo) -> bool:
    return getattr(field.annotation, "__origin__", None) is tuple


# --- what can be set -------------------------------------------------------------------------------------------------


class Known(NamedTuple):
    """Paths that can be set, each with its field in every type that has it; and the types of each union."""

    fields: dict[str, list[FieldInfo]]
    unions: dict[str, list[str]]


@cache
def _known() -> Known:
    known = Known({}, {})
    for path, field, union in _walk(Config, ""):
        known.fields.setdefault(path, []).append(field)
        if union:
            known.unions[path] = list(dict.fromkeys([*known.unions.get(path, []), *union]))
    return known


def _walk(model: type[BaseModel], path: str) -> Iterator[tuple[str, FieldInfo, list[str]]]:
    for name, field in model.model_fields.items():
        here = f"{path}{name}"
        parts = [part for part in (field.annotation, *get_args(field.annotation)) if isinstance(part, type)]
        models = [part for part in parts if issubclass(part, BaseModel)]
        yield here, field, [m.model_fields["type"].default for m in models] if field.discriminator else []
        for inner in models:
            yield from _walk(inner, f"{here}.")


def _did_you_mean(path: str) -> str:
    """Name the settings whose last name is the same or nearly so: those beside the wrong one, else anywhere."""
    parent, _, leaf = path.rpartition(".")
    leaves = {known: known.rpartition(".") for known in _known().fields}
    near = difflib.get_close_matches(leaf, {last for *_, last in leaves.values()}, n=1, cutoff=0.7)
    alike = [known for known, (*_, last) in leaves.items() if last in near]
    beside = [known for known in alike if leaves[known][0] == parent]
    nearest = (beside or alike)[:3]
    return f"; did you mean {' or '.join(nearest)}?" if nearest else ""


# --- messages --------------------------------------------------------------------------------------------------------


def _report(error: ValidationError, layers: Sequence[Layer]) -> str:
    problems = [_problem(dict(details), layers) for details in error.errors(include_url=False)]
    count = "" if len(problems) == 1 else f"{len(problems)} settings are wrong: "
    return count + " | ".join(problems)


def _problem(details: Tree, layers: Sequence[Layer]) -> str:
    path, got = _dotted(details["loc"]), details.get("input")
    where = _origin(path, layers)
    match details["type"]:
        case "extra_forbidden" if path in _known().fields:
            return f"{path}{where}: not a setting of type {details['loc'][-2]}"
        case "extra_forbidden":
            return f"{path}{where}: unknown setting{_did_you_mean(path)}"
        case "value_error":
            return f"{path}{where}: {details['ctx']['error']}".removeprefix(": ")
        case "union_tag_invalid" | "union_tag_not_found":
            types = _known().unions[path]
            given = got.get("type") if isinstance(got, dict) else got
            near = difflib.get_close_matches(str(given), types, n=1)
            meant = f"; did you mean {path}.type={near[0]}?" if near else ""
            return f"{path}.type{where}: expected {' or '.join(types)}, got {_shown(got)}{meant}"
    expected = details["msg"].removeprefix("Input should be ").partition(", unable to")[0]
    if details["type"] in ("model_type", "model_attributes_type"):
        types = _known().unions.get(path, [])
        expected = f"a table of settings, such as {path}.type={got}" if got in types else "a table of settings"
    return f"{path}{where}: expected {expected}, got {_shown(got)}"


def _dotted(loc: Sequence[int | str]) -> str:
    """Turn pydantic's location into our path: without the names of union members, with `[2]` for items."""
    path = ""
    for part in loc:
        if part in _known().unions.get(path, ()):
            continue
        path += f"[{part}]" if isinstance(part, int) else f"{'.' if path else ''}{part}"
    return path


def _origin(path: str, layers: Sequence[Layer]) -> str:
    """Name the file that set this path, if a file did."""
    for file, tree in reversed(layers):
        node: object = tree
        for part in path.partition("[")[0].split("."):
            node = node.get(part) if isinstance(node, dict) else None
        if node is not None:
            return "" if file is None else f" (in {file})"
    return ""


def _shown(value: object) -> str:
    if isinstance(value, dict) and "type" in value:
        value = value["type"]
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _toml_lines(tree: Tree, path: tuple[str, ...]) -> Iterator[str]:
    values = {name: value for name, value in tree.items() if not isinstance(value, dict) and value is not None}
    if values and path:
        yield f"\n[{'.'.join(path)}]"
    for name, value in values.items():
        yield f"{name} = {toml_value(value)}"
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _toml_lines(value, (*path, name))


def toml_value(value: object) -> str:
    """A value as TOML has it, on one line."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name} = {toml_value(inner)}' for name, inner in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)  # TOML's basic strings have the same escapes
    return repr(value)
