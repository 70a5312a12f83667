"""What a check reports: one finding, its name, and the list of all names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Literal, NamedTuple

__all__ = ["FAULTS", "Fault", "Finding", "Severity", "Where", "finding", "worst_first"]

Severity = Literal["broken", "suspect"]
"""`broken`: the model cannot be right. `suspect`: it can learn, but less than it should, or it has a reason."""


class Fault(NamedTuple):
    """What is known about a fault before anything is measured."""

    severity: Severity
    right: str
    advice: str


FAULTS: dict[str, Fault] = {
    "future_leak": Fault(
        "broken",
        "logits at step t depend on the inputs 0..t only",
        "mask attention to keys after the query (True = may be attended to, lower triangle); check that no layer mixes"
        " steps; a tagger that may look ahead is examined with Adapter(is_causal=False)",
    ),
    "padding_leak": Fault(
        "broken",
        "the amount and the content of padding change nothing at real positions",
        "mask padded keys in attention, pack sequences for recurrent layers (the reverse direction above all), average"
        " over real positions only",
    ),
    "batch_leak": Fault(
        "broken",
        "an example's output does not depend on the other examples of its batch",
        "check batch_first and every view, transpose, softmax and normalisation for the batch axis; a model that wants"
        " (T, B) is examined with Adapter(time_first=True)",
    ),
    "stepwise_mismatch": Fault(
        "broken",
        "one call on n tokens equals n calls on one token",
        "count positions from the state, append to the cache before it is read, return the state after the last token",
    ),
    "state_lost": Fault(
        "broken",
        "what was read earlier changes what is predicted later, through every part of the state",
        "pass the state that a step returns into the next step, all parts of it, h and c alike",
    ),
    "state_carried": Fault(
        "broken",
        "two calls on unrelated examples do not know of each other",
        "start every unrelated sequence from a fresh state; keep no state on the module",
    ),
    "state_not_detached": Fault(
        "broken",
        "the gradient ends at the edge of a chunk; values go on",
        "detach the state before it enters the next chunk: state = tuple(s.detach() for s in state)",
    ),
    "attention_axis": Fault(
        "broken",
        "the weights over one query's keys sum to 1",
        "take the softmax over the axis of the keys (the last one of scores (B, T, S))",
    ),
    "attention_scale": Fault(
        "broken",
        "scores are q·k / √head_dim, so that their variance does not grow with head_dim",
        "divide the scores once by the square root of the width of one head; only with start values that are made for"
        " another scale (T5, muP) can it be another",
    ),
    "attention_saturated": Fault(
        "suspect",
        "the softmax passes gradient: 1 − Σ p² is well above 0 for most queries while the loss is still high",
        "scale the scores by 1 / √head_dim, and start the query and key projections smaller",
    ),
    "attention_mask": Fault(
        "broken",
        "every real query may attend to itself (self-attention) and to at least one key",
        "check the mask's polarity and its diagonal: torch.tril keeps the diagonal, and True means hidden in"
        " nn.MultiheadAttention but visible in scaled_dot_product_attention",
    ),
    "forget_bias": Fault(
        "suspect",
        "the effective bias of the forget gate, b_ih + b_hh, starts at +1 (torch.nn.LSTM leaves it near 0)",
        "set the second quarter (gate order i f g o) of one of the two bias vectors to 1 and that of the other to 0",
    ),
    "first_loss": Fault(
        "broken",
        "an untrained model is as good as chance: the loss is close to ln V",
        "start the output layer (and tied embeddings) smaller, e.g. with standard deviation 0.02",
    ),
    "probabilities_not_logits": Fault(
        "broken",
        "cross entropy takes logits; its softmax must be the only one",
        "return the logits without softmax, or use a loss on log-probabilities",
    ),
    "labels_shifted": Fault(
        "broken",
        "the label at step t is the token right after the newest one that the model has seen at step t",
        "shift exactly once: inputs = tokens[:, :-1], labels = tokens[:, 1:]",
    ),
    "pads_counted": Fault(
        "broken",
        "positions without a label change neither the loss nor its gradient",
        "give the loss ignore_index (also for label smoothing) and divide by the number of labels",
    ),
    "labels_uncounted": Fault(
        "suspect",
        "every label that is not the ignored one has a gradient",
        "give padding an id of its own: where it shares that of the end of a sequence, the end is never learnt; or the"
        " symbol's class weight is 0",
    ),
    "logits_not_normalised": Fault(
        "broken",
        "a constant added to all logits of a step changes nothing: a softmax makes probabilities of them",
        "take cross_entropy, or log_softmax before nll_loss",
    ),
    "dropout_in_eval": Fault(
        "broken",
        "in evaluation mode the same input gives the same output",
        "pass training=self.training to functional dropout, and register every submodule so that eval() reaches it",
    ),
    "vanishing_gradient_time": Fault(
        "suspect",
        "a state still feels the one 4 steps before it: ‖∂s_t/∂s_(t-4)‖₂ ≥ 0.01",
        "use LSTM or GRU cells, forget bias +1, orthogonal recurrent weights, smaller inputs to saturated gates",
    ),
    "exploding_gradient_time": Fault(
        "suspect",
        "a small change of an early state does not grow a thousandfold: ‖∂s_t/∂s_k‖₂ ≤ 1000",
        "start the recurrent weights with singular values near 1, and clip the gradient's norm",
    ),
    "vanishing_gradient_depth": Fault(
        "suspect",
        "the first block gets at least a thousandth of the last block's gradient",
        "add residual connections and normalisation (pre-norm), or use fewer layers",
    ),
    "exploding_gradient_depth": Fault(
        "suspect",
        "the first block gets at most a thousand times the last block's gradient",
        "add normalisation, and scale the initial weights by 1 / √fan_in",
    ),
    "no_gradient": Fault(
        "broken",
        "every weight that is used gets a gradient",
        "look for detach(), .data, no_grad() or argmax between this weight and the loss",
    ),
    "unregistered_weights": Fault(
        "broken",
        "every weight that the loss depends on is among model.parameters()",
        "keep layers in nn.ModuleList (not a plain list) and weights in nn.Parameter, so that the optimiser sees them",
    ),
    "dead_units": Fault(
        "suspect",
        "units of a rectified layer are active somewhere in the batch, or at least can be",
        "check the bias's start value and the learning rate; GELU or a leaky slope keeps a gradient",
    ),
    "saturated_units": Fault(
        "suspect",
        "tanh and sigmoid work where their slope is not 0",
        "start with smaller weights, normalise the inputs",
    ),
    "non_finite": Fault(
        "broken",
        "every value is finite, forward and backward",
        "look at this module: a softmax over nothing, a logarithm or root of 0, a division by a count of 0",
    ),
    "source_ignored": Fault(
        "broken",
        "another source gives another output",
        "check that the encoder's output or final state reaches the decoder, and that each target belongs to the source"
        " on its line",
    ),
    "order_ignored": Fault(
        "suspect",
        "the same source symbols in another order give another output",
        "add positions to the encoder's embeddings",
    ),
    "cannot_overfit": Fault(
        "broken",
        "a handful of examples can be learnt by heart",
        "look at the other findings first; then for labels that do not belong to the inputs, and frozen weights",
    ),
    "exposure_gap": Fault(
        "suspect",
        "symbols are about as often right after the model's own prefix as after the true one",
        "train longer, or feed the model its own symbols part of the time (scheduled sampling)",
    ),
    "loss_stuck": Fault(
        "broken",
        "after some hundred steps the loss is below that of a constant answer (symbol frequencies), let alone ln V",
        "look at the other findings first; then for targets that do not belong to their sources, and try a learning"
        " rate ten times lower, then ten times higher",
    ),
    "steps_skipped": Fault(
        "suspect",
        "every step has a finite gradient",
        "look at the data lines of the skipped steps, and lower the learning rate",
    ),
    "dev_got_worse": Fault(
        "suspect",
        "the last dev values are about as good as the best one",
        "train less (training.patience), on more data, with more dropout or a smaller model",
    ),
    "learnt_by_heart": Fault(
        "suspect",
        "what is learnt on training pairs helps on held-out ones",
        "check that each target belongs to the source on its line (columns, order of lines); then as for any"
        " overfitting: more data, more dropout, a smaller model",
    ),
    "attention_stands_still": Fault(
        "suspect",
        "where a model looks depends on what it writes",
        "look for queries that do not change; try another attention score, or a lower learning rate",
    ),
    "unknown_symbols": Fault(
        "suspect",
        "hardly any symbol of the data is unknown to the model",
        "check columns, normal form, case and units of the file; lower min_count or raise max_symbols and train again",
    ),
    "pairs_left_out": Fault(
        "suspect",
        "hardly any pair is over the length limits",
        "raise data.source.max_length and data.target.max_length, or set data.over_long=cut",
    ),
    "overlap": Fault(
        "suspect",
        "no validation pair occurs in the training data",
        "split by distinct source, and report the score on the unseen part",
    ),
}
"""Every name that a finding can have; names are stable."""

CAUSES = {
    "no_gradient": ("attention_axis", "source_ignored"),
    "cannot_overfit": (
        "state_lost", "probabilities_not_logits", "no_gradient", "unregistered_weights", "source_ignored",
    ),
}  # fmt: skip
"""What can follow from what: weights over one key are 1 whatever the scores are, and nothing trains an encoder that
nobody reads."""


@dataclass(frozen=True)
class Where:
    """The place of a finding; parts that are not known are none.

    Attributes
    ----------
    module : str or None
        Name as in `model.named_modules()`; the model's class for its own `forward`.
    step : int or None
        Position in the sequence, counted from 0.
    line : int or None
        Line of the data file, counted from 1.
    """

    module: str | None = None
    step: int | None = None
    line: int | None = None

    def __str__(self) -> str:
        parts = [self.module or "the model"]
        parts += [] if self.step is None else [f"step {self.step}"]
        parts += [] if self.line is None else [f"line {self.line}"]
        return ", ".join(parts)


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: what was measured, what is right, where, and what to do.

    Attributes
    ----------
    name : str
        One of `FAULTS`.
    severity : "broken" or "suspect"
    measured, right, advice : str
    where : Where
    cause : str or None
        Another finding of the same examination that this one can follow from.
    """

    name: str
    severity: Severity
    measured: str
    right: str
    where: Where
    advice: str
    cause: str | None = None

    def line(self) -> str:
        """The finding in one line."""
        follows = "" if self.cause is None else f" (can follow from {self.cause})"
        return (
            f"{self.severity}: {self.name} at {self.where}{follows}: {self.measured}; right: {self.right};"
            f" to do: {self.advice}"
        )

    def to_json(self) -> dict[str, object]:
        """The finding as JSON values."""
        return asdict(self)


def finding(name: str, measured: str, *, where: Where | None = None, advice: str | None = None) -> Finding:
    """Build a finding from its name and what was measured."""
    fault = FAULTS[name]
    return Finding(name, fault.severity, measured, fault.right, where or Where(), advice or fault.advice)


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Order findings by severity, then as listed in `FAULTS`; what can follow from another one is marked and last."""
    order, findings = list(FAULTS), list(findings)
    names = {found.name for found in findings}
    marked = [replace(found, cause=_cause(found.name, names)) for found in findings]
    return sorted(marked, key=lambda one: (one.severity != "broken", one.cause is not None, order.index(one.name)))


def _cause(name: str, names: set[str]) -> str | None:
    return next((cause for cause in CAUSES.get(name, ()) if cause in names), None)
