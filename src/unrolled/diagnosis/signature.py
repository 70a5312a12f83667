"""Guess how a foreign `forward` is to be called, from the names of its parameters."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from unrolled.diagnosis.batch import Batch, Side
from unrolled.errors import ConfigError

__all__ = ["arguments", "find_logits", "find_state", "state_parameters", "takes_mask"]

SOURCE = {"source", "src", "src_ids", "src_tokens", "source_ids", "encoder_input", "encoder_inputs", "enc_in"}
TARGET = {
    "inputs", "tgt", "trg", "target", "targets", "tgt_in", "tgt_ids", "dec_in", "decoder_input", "decoder_inputs",
    "decoder_input_ids", "prev_output_tokens",
}  # fmt: skip
STATE = (
    "state", "states", "hidden", "hidden_state", "hx", "h", "h0", "hc", "carry", "past", "past_key_values", "cache",
    "kv_cache", "caches", "kv", "kvs", "past_kv", "past_kvs", "past_key_value", "layer_past", "mems", "prev_state",
    "prev_hidden", "init_state", "initial_state",
)  # fmt: skip
CELL = ("c", "c0", "cx", "cell", "cell_state")
"""The other half of an LSTM's state where h and c are parameters of their own."""
SOURCE_REAL = {"source_mask", "src_mask", "encoder_mask", "input_mask"}
SOURCE_PADDED = {
    "src_key_padding_mask", "src_padding_mask", "src_pad_mask", "source_padding_mask", "memory_key_padding_mask",
}  # fmt: skip
SOURCE_LENGTHS = {"source_lengths", "source_lens", "src_lengths", "src_lens", "src_len", "src_length", "input_lengths"}
INPUTS_PADDED = {"tgt_key_padding_mask", "tgt_padding_mask", "tgt_pad_mask", "key_padding_mask", "padding_mask"}
LENGTHS = {"lengths", "lens"}
FORCING = re.compile(r"((use|is|with|do)_)?(teacher_?forc(e|ed|ing)|tf)(_(ratio|prob|rate|p))?")
"""How often the true symbol is fed, or whether it is."""


class Parts(tuple[Any, ...]):
    """A state whose parts are parameters of their own."""


def arguments(model: Any, batch: Batch, *, state: Any, time_first: bool) -> dict[str, Any]:
    """Arguments for a model by name: tokens, masks where it takes them, state, full teacher forcing.

    Raises
    ------
    ConfigError
        Where a required parameter cannot be told from its name.
    """
    parameters = _parameters(model)
    chosen = {name: _flip(value) if time_first else value for name, value in _tokens(model, parameters, batch).items()}
    known, states = _masks(batch), state_parameters(model)
    has_padding = batch.pad is not None or batch.source_mask is not None or batch.mask is not None
    for name, parameter in parameters.items():
        is_required = parameter.default is inspect.Parameter.empty
        if (name in STATE or name in states) and (state is not None or is_required):
            given = _first_state(model, batch, num_parts=len(states)) if state is None else state
            if isinstance(given, Parts) and name in states:
                chosen[name] = given[states.index(name)]
            elif name in STATE or given is None:
                chosen[name] = given
        elif name in known and known[name] is not None and (is_required or has_padding):
            chosen[name] = known[name]
        elif FORCING.fullmatch(name):
            chosen[name] = 1.0
    return chosen


def state_parameters(model: Any) -> list[str]:
    """The parameter that takes a state, if there is one, or the two that take h and c."""
    parameters = _parameters(model)
    states = [name for name in parameters if name in STATE][:1]
    return states + [name for name in parameters if states and name in CELL][:1]


def takes_mask(model: Any, side: Side) -> bool:
    """Whether the model is told which positions are real, rather than finding out from the ids.

    A tagger that takes lengths for packing may still read a mask off its ids, so that they do not count.
    """
    told = SOURCE_REAL | SOURCE_PADDED | SOURCE_LENGTHS if side == "source" else INPUTS_PADDED | {"attention_mask"}
    return not told.isdisjoint(_parameters(model))


def find_logits(output: Any) -> Tensor:
    """The logits in whatever a model returns: a tensor, `.logits`, `["logits"]`, or the first of a tuple."""
    if isinstance(output, Tensor):
        return output
    if hasattr(output, "logits"):
        return find_logits(output.logits)
    if isinstance(output, Mapping) and "logits" in output:
        return find_logits(output["logits"])
    if isinstance(output, tuple | list) and output:
        return find_logits(output[0])
    raise ConfigError(f"no logits in a {type(output).__name__}; pass adapter=Adapter(forward=...) that returns them")


def find_state(output: Any, *, num_parts: int = 1) -> Any:
    """The state in whatever a model returns: `.state`, `["state"]`, or the second of a tuple.

    Of a state in two parts, the second and third of a tuple.
    """
    if isinstance(output, Tensor):
        return None
    if num_parts > 1 and isinstance(output, tuple | list) and len(output) > num_parts:
        return Parts(output[1 : 1 + num_parts])
    for name in STATE:
        if isinstance(output, Mapping) and name in output:
            return output[name]
        if hasattr(output, name):
            return getattr(output, name)
    return output[1] if isinstance(output, tuple | list) and len(output) > 1 else None


def _parameters(model: Any) -> dict[str, inspect.Parameter]:
    function = model.forward if isinstance(model, nn.Module) else model
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function).parameters
    return {name: parameter for name, parameter in parameters.items() if parameter.kind not in kinds}


def _tokens(model: Any, parameters: dict[str, inspect.Parameter], batch: Batch) -> dict[str, Any]:
    """Source and inputs for the parameters that take tokens, told apart by name, else by order."""
    named = SOURCE | TARGET
    other = {*STATE, *_masks(batch), *state_parameters(model)}
    required = [name for name, parameter in parameters.items() if parameter.default is inspect.Parameter.empty]
    rest = [name for name in parameters if name not in other and not FORCING.fullmatch(name)]
    takers = [name for name in rest if name in required or name in named]
    if batch.source is not None and len(takers) == 2:
        is_reversed = takers[0] in TARGET - {"inputs"} and takers[1] in SOURCE
        pair = (batch.inputs, batch.source) if is_reversed else (batch.source, batch.inputs)
        return dict(zip(takers, pair, strict=True))
    # an optional `targets` of a language model only asks for logits at every step
    unknown = sorted((name for name in takers[1:] if name in required), key=lambda name: name in named)
    if not takers or unknown:
        raise ConfigError(
            f"cannot tell how to call {type(model).__name__}.forward({', '.join(parameters)}): what is"
            f" {(unknown or ['its input'])[0]!r}? pass adapter=Adapter(forward=lambda model, batch: ...)"
            f" that returns logits (B, T, V)"
        )
    return dict.fromkeys(takers, batch.inputs)


def _masks(batch: Batch) -> dict[str, Any]:
    real, inputs_real = batch.real_source, batch.real_inputs
    own = inputs_real if real is None else real
    return {
        **dict.fromkeys(SOURCE_REAL, real),
        **dict.fromkeys(SOURCE_PADDED, None if real is None else ~real),
        **dict.fromkeys(SOURCE_LENGTHS, None if real is None else real.sum(1)),
        **dict.fromkeys(LENGTHS, own.sum(1)),
        **dict.fromkeys(INPUTS_PADDED, ~inputs_real),
        "attention_mask": inputs_real,
        "mask": batch.mask,
    }


def _first_state(model: Any, batch: Batch, *, num_parts: int) -> Any:
    start = getattr(model, "init_hidden", None)
    state = None if start is None else start(batch.size)
    return Parts(state) if num_parts > 1 and isinstance(state, tuple | list) and len(state) == num_parts else state


def _flip(tokens: Tensor) -> Tensor:
    return tokens.transpose(0, 1)  # (B, T, ...) -> (T, B, ...)
