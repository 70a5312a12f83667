"""Every figure, drawn for a run: one function each, from a view of the run to a matplotlib figure."""

from __future__ import annotations

import difflib
from collections.abc import Callable

import numpy as np
from matplotlib.figure import Figure

from unrolled import diagnosis, figures
from unrolled.errors import ConfigError
from unrolled.gallery.view import View
from unrolled.metrics import Counts, Estimate, Group, bootstrap_rate

__all__ = ["PICTURES", "draw"]


def training(view: View) -> Figure:
    """Loss, dev metric and learning rate over the steps."""
    return figures.training_curves(view.material.events)


def attention(view: View) -> Figure:
    """Where the model looked while it wrote one output, beside what that output rests on."""
    if not isinstance(view.material, diagnosis.PairMaterial):
        raise ConfigError(f"attention: {view.path} is a language model; see the figure `heads`")
    best, (source, features) = view.prediction, view.source
    if best.attention is None or not best.target_symbols:
        raise ConfigError(f"attention: {view.path} has none to show for {source!r}; see the figure `gradients`")
    drops = view.predictor.occlude(source, best.text, features)
    return figures.attention(
        best.attention, best.source_symbols, best.target_symbols, title=f"{source} → {best.text}", occlusion=drops
    )


def heads(view: View) -> Figure:
    """The same for every head of every layer of a Transformer; of a language model: its look at earlier symbols."""
    ids = view.followed
    found = [
        weights
        for module, weights in diagnosis.attention_weights(view.model, ids)
        if module.startswith("decoder.layers") and module.endswith(".cross") == (ids.source is not None)
    ]
    if not found:
        raise ConfigError(f"heads: the decoder of {view.path} has no heads; see the figure `attention`")
    assert ids.labels is not None
    if ids.source is None:
        symbols = view.symbols(ids.inputs)
        return figures.attention_heads(np.stack(found), symbols, symbols)
    source, target = view.symbols(ids.source, of_source=True), view.symbols(ids.labels)
    return figures.attention_heads(np.stack(found), source, target, title=f"{view.source[0]} → {view.prediction.text}")


def gates(view: View) -> Figure:
    """Gates of the last recurrent layer, unit by unit, while one output is written (or its source is read)."""
    found = diagnosis.gate_values(view.model, view.followed)
    name, values = next(reversed(found.items()), ("", {}))
    shown = {gate: grid for gate, grid in values.items() if gate.endswith("gate")}
    if not shown:
        raise ConfigError(f"gates: {view.path} has no gated recurrent layer; see the figure `gradients`")
    ids = view.followed
    if ids.source is None or name.startswith("decoder"):
        return figures.gates_over_time(shown, view.symbols(ids.inputs))
    return figures.gates_over_time(shown, view.symbols(ids.source, of_source=True))


def gradients(view: View) -> Figure:
    """Norms of the loss's gradient on its way back through time and depth."""
    flow = diagnosis.gradient_flow(view.model, view.batch)
    states = flow.states or {"inputs, from the last step": flow.inputs}
    return figures.gradient_norms(states, flow.depth)


def jacobian(view: View) -> Figure:
    """The recurrent matrix of the last recurrent layer beside the true product of Jacobians."""
    found = diagnosis.jacobian_norms(view.model, view.batch)
    if not found:
        raise ConfigError(f"jacobian: {view.path} has no recurrent layer; see the figure `gradients`")
    last = found[-1]
    return figures.jacobian_spectrum(
        last.eigenvalues, last.weight_singular_values, product_norms=last.hidden_norm, bounds=last.bound
    )


def lengths(view: View) -> Figure:
    """Error rate by source length, training lengths marked."""
    groups = view.report.evaluation.by_length
    training = view.of_pairs.train
    return figures.length_curve(
        [_middle(group.name) for group in groups],
        {view.path.name: [_estimate(group) for group in groups]},
        counts=[group.num_sources for group in groups],
        training_lengths=() if training is None else view.of_pairs.codec.encode_sources(training.sources).lengths - 1,
    )


def confusions(view: View) -> Figure:
    """Which symbols are taken for which others."""
    return figures.symbol_confusion(view.report.evaluation.confusions)


PICTURES: dict[str, Callable[[View], Figure]] = {
    picture.__name__: picture
    for picture in (training, attention, heads, gates, gradients, jacobian, lengths, confusions)
}
"""All figures by name."""


def draw(name: str, view: View) -> Figure:
    """Draw a figure of a run.

    Raises
    ------
    ConfigError
        If there is no figure of that name, or the run has nothing to show in it.
    """
    if name not in PICTURES:
        near = difflib.get_close_matches(name, PICTURES, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"figure: expected one of {', '.join(PICTURES)}, got {name!r}{hint}")
    return PICTURES[name](view)


def _middle(name: str) -> float:
    """Middle of a group of lengths: `7` or `8–10`."""
    return float(np.mean([int(end) for end in name.split("–")]))


def _estimate(group: Group) -> Estimate:
    wrong = np.arange(group.num_sources) < group.num_wrong
    return bootstrap_rate(Counts(wrong.astype(np.int64), np.ones(group.num_sources, dtype=np.int64)))
