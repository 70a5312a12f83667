"""What a sweep file asks for, as a list of trainings.

::

    train = "words.tsv"                       # or source = ..., target = ...: two parallel files
    dev = "dev.tsv"                           # without it each seed holds out other pairs
    preset = "g2p"                            # and config = "run.toml", as for `unrolled train`
    seeds = [1, 2, 3]
    search = "grid"                           # or "random", then num_settings of them

    [settings]                                # the same in every run
    training.minutes = 2

    [vary]                                    # what is tried
    model.encoder.hidden_size = [128, 256]
    training.optimizer.learning_rate = { low = 1e-3, high = 1e-2, scale = "log" }     # of random search
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, ValidationError, model_validator

from unrolled import presets
from unrolled.config import Config
from unrolled.config.base import Count, Positive, Settings
from unrolled.errors import ConfigError
from unrolled.runs import digest_file
from unrolled.settings import parse_override, read_toml, resolve, toml_value
from unrolled.text import list_files

__all__ = ["Range", "Sweep", "Trial", "read_sweep", "trials_of"]

DIGITS = 3  # of drawn numbers: a command that can be read says nearly the same
MOST_DRAWS = 100  # for each setting that is wanted, before a small space counts as used up


class Range(Settings):
    """Numbers that are drawn evenly, or evenly in their logarithm; whole ones if both ends are."""

    low: int | float
    high: int | float
    scale: Literal["linear", "log"] = "linear"

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if self.low >= self.high or (self.scale == "log" and self.low <= 0):
            raise ValueError(f"expected low < high, above 0 with scale=log, got {self.low} and {self.high}")
        return self

    def draw(self, rng: np.random.Generator) -> int | float:
        """One of them."""
        low, high = (math.log(end) if self.scale == "log" else float(end) for end in (self.low, self.high))
        value = rng.uniform(low, high)
        value = math.exp(value) if self.scale == "log" else value
        is_whole = isinstance(self.low, int) and isinstance(self.high, int)
        return round(value) if is_whole else float(f"{value:.{DIGITS}g}")


class Sweep(Settings):
    """A sweep file."""

    train: str | None = None
    source: str | None = None
    target: str | None = None
    dev: str | None = None
    dev_source: str | None = None
    dev_target: str | None = None
    preset: str | None = None
    config: str | None = None
    """A TOML file of settings."""
    seeds: Annotated[tuple[Count, ...], Field(min_length=1)] = (0,)
    """Each setting is trained with each of them."""
    search: Literal["grid", "random"] = "grid"
    """All combinations of the values, or some that are drawn."""
    num_settings: Positive = 10
    """Of random search."""
    draw_seed: Count = 0
    """Of random search: decides which settings are drawn."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Dotted path to value, the same in every run."""
    vary: dict[str, tuple[Any, ...] | Range] = Field(min_length=1)
    """Dotted path to the values that are tried."""

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if (self.train is None) == (self.source is None or self.target is None):
            raise ValueError("expected train, or source and target")
        ranges = [path for path, values in self.vary.items() if isinstance(values, Range)]
        if self.search == "grid" and ranges:
            raise ValueError(f"vary.{ranges[0]} is a range, which only search='random' draws from; or list its values")
        for path in self.settings.keys() & self.vary.keys():
            raise ValueError(f"{path} stands in settings and in vary")
        for path in ("training.seed",):
            if path in self.settings or path in self.vary:
                raise ValueError(f"{path}: give seeds = [...] instead")
        return self

    def choices(self) -> Iterator[dict[str, Any]]:
        """The settings that are tried, in their order; a longer random search begins like a shorter one."""
        if self.search == "grid":
            values = [found for found in self.vary.values() if isinstance(found, tuple)]
            yield from (dict(zip(self.vary, chosen, strict=True)) for chosen in itertools.product(*values))
            return
        rng, seen = np.random.default_rng(self.draw_seed), set[str]()
        for _ in range(MOST_DRAWS * self.num_settings):
            choice = {path: _drawn(values, rng) for path, values in self.vary.items()}
            key = json.dumps(choice, sort_keys=True)
            if key not in seen:
                seen.add(key)
                yield choice
            if len(seen) == self.num_settings:
                return


def _drawn(values: tuple[Any, ...] | Range, rng: np.random.Generator) -> Any:
    return values.draw(rng) if isinstance(values, Range) else values[int(rng.integers(len(values)))]


@dataclass(frozen=True)
class Trial:
    """One training.

    Attributes
    ----------
    choice : dict
        What is varied: dotted path to value.
    seed : int
    arguments : tuple of str
        Of `unrolled train`, but for `--out`.
    config : Config
        What they come to.
    data : str
        Digest of the files to train on, with their names.
    """

    choice: Mapping[str, Any]
    seed: int
    arguments: tuple[str, ...]
    config: Config
    data: str

    @property
    def setting(self) -> str:
        """A short name of everything but the seed: all settings, wherever they were given, and the data."""
        settings = self.config.model_dump(mode="json")
        del settings["training"]["seed"]
        return hashlib.sha256(json.dumps([settings, self.data]).encode()).hexdigest()[:8]

    @property
    def name(self) -> str:
        """Of the run's folder: the same settings, data and seed have the same."""
        return f"{self.setting}-seed{self.seed}"

    def __str__(self) -> str:
        return " ".join([*(f"{path}={_written(value)}" for path, value in self.choice.items()), f"seed {self.seed}"])


def read_sweep(file: str | Path) -> Sweep:
    """Read a sweep file.

    Raises
    ------
    ConfigError
        If it cannot be read or makes no sense; all problems at once.
    """
    tree = read_toml(file)
    for name in ("settings", "vary"):
        if isinstance(tree.get(name), dict):
            tree[name] = dict(_flat(tree[name], ""))
    try:
        return Sweep.model_validate(tree)
    except ValidationError as error:
        problems = []
        for found in error.errors(include_url=False):
            where = ".".join(str(part) for part in found["loc"] if part not in ("Range", "tuple[any, ...]"))
            is_unknown = found["type"] == "extra_forbidden"
            message = _unknown(where) if is_unknown else found["msg"].removeprefix("Value error, ")
            problems.append(f"{where}: {message}".removeprefix(": "))
        raise ConfigError(f"{file}: {' | '.join(problems)}") from None


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, Sweep.model_fields, n=1)
    return f"not known in a sweep file{f'; did you mean {near[0]}?' if near else ''}"


def _flat(tree: Mapping[str, Any], before: str) -> Iterator[tuple[str, Any]]:
    """Nested tables as dotted paths; a range is a value."""
    for name, value in tree.items():
        if isinstance(value, dict) and not {"low", "high"} & value.keys():
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def trials_of(sweep: Sweep) -> list[Trial]:
    """All trainings of a sweep, each checked; one setting after the other.

    Raises
    ------
    ConfigError
        If a setting is unknown or makes no sense, or two choices come to the same.
    """
    base = None if sweep.preset is None else presets.get(sweep.preset)
    data, trials = _digest(sweep), []
    for choice in sweep.choices():
        overrides = [f"{path}={_written(value)}" for path, value in {**sweep.settings, **choice}.items()]
        for seed in sweep.seeds:
            config = resolve(base, file=sweep.config, overrides=overrides, flags={"training.seed": seed})
            trials.append(Trial(choice, seed, (*_data(sweep), *overrides, f"--seed={seed}"), config, data))
    _refuse_twins(trials)
    return trials


def _refuse_twins(trials: Sequence[Trial]) -> None:
    first: dict[str, Trial] = {}
    for trial in trials:
        twin = first.setdefault(trial.name, trial)
        if twin is not trial:
            raise ConfigError(f"vary: {trial} is the same training as {twin}; leave one of them out")


def _digest(sweep: Sweep) -> str:
    """SHA-256 of the names and contents of all files that there are; training complains of the others."""
    names = (sweep.train, sweep.source, sweep.target, sweep.dev, sweep.dev_source, sweep.dev_target)
    parts = [*names]
    for name in names:
        if name is not None and Path(name).exists():
            parts += [digest_file(path) for path in list_files(name)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _data(sweep: Sweep) -> list[str]:
    names = ("source", "target", "dev", "dev_source", "dev_target", "preset", "config")
    given = [f"--{name.replace('_', '-')}={getattr(sweep, name)}" for name in names if getattr(sweep, name) is not None]
    return [*([] if sweep.train is None else [sweep.train]), *given]


def _written(value: Any) -> str:
    """A value as an override has it: TOML, or a bare word where that reads as itself."""
    is_bare = isinstance(value, str) and parse_override(f"a={value}")[1] == value
    return str(value) if is_bare else toml_value(value)
