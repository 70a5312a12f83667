"""Pairs of pure functions: an operation and its derivative.

``f_forward(...)`` returns its result and a cache; ``f_backward(d_out, cache)`` returns ∂L/∂ of each real-valued
argument, in order. Axes: ``...`` any leading axes, I inputs, O outputs, V classes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from unrolled.reference.erf import erf
from unrolled.reference.layer import BoolArray, FloatArray, IntArray

__all__ = [
    "cross_entropy_backward",
    "cross_entropy_forward",
    "dropout_backward",
    "dropout_forward",
    "embedding_backward",
    "embedding_forward",
    "gelu_backward",
    "gelu_forward",
    "glu_backward",
    "glu_forward",
    "layer_norm_backward",
    "layer_norm_forward",
    "linear_backward",
    "linear_forward",
    "log_softmax",
    "masked_softmax_backward",
    "masked_softmax_forward",
    "relu_backward",
    "relu_forward",
    "sigmoid",
    "silu_backward",
    "silu_forward",
    "tanh_backward",
    "tanh_forward",
]


# --- element by element ----------------------------------------------------------------------------------------------


def sigmoid(x: FloatArray, out: FloatArray | None = None) -> FloatArray:
    """``σ(x) = 1 / (1 + e^−x) = ½ tanh(x/2) + ½``; the second form overflows for no finite x. `out` may be x itself."""
    y: FloatArray = np.multiply(x, 0.5, out=out)
    np.tanh(y, out=y)
    y *= 0.5
    y += 0.5
    return y


def tanh_forward(x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """``y = tanh(x)``; the result is its own cache."""
    y: FloatArray = np.tanh(x)
    return y, y


def tanh_backward(d_y: FloatArray, y: FloatArray) -> FloatArray:
    """``d_x = (1 − y²) ⊙ d_y``."""
    return (1.0 - y * y) * d_y


def relu_forward(x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """``y = max(x, 0)``; the result is its own cache."""
    y: FloatArray = np.maximum(x, 0.0)
    return y, y


def relu_backward(d_y: FloatArray, y: FloatArray) -> FloatArray:
    """``d_x = d_y`` where ``x > 0``, else 0 (also at the kink)."""
    return d_y * (y > 0.0)


class GELUCache(NamedTuple):
    """What `gelu_backward` needs."""

    x: FloatArray
    share: FloatArray


def gelu_forward(x: FloatArray) -> tuple[FloatArray, GELUCache]:
    """``y = x Φ(x)``, Φ the normal distribution function ``½ (1 + erf(x / √2))`` (Hendrycks & Gimpel 2016)."""
    share = 0.5 * (1.0 + erf(x * math.sqrt(0.5)))
    return x * share, GELUCache(x, share)


def gelu_backward(d_y: FloatArray, cache: GELUCache) -> FloatArray:
    """``d_x = (Φ(x) + x φ(x)) ⊙ d_y``, φ the normal density."""
    x, share = cache
    density: FloatArray = np.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)
    return (share + x * density) * d_y


class SiLUCache(NamedTuple):
    """What `silu_backward` needs."""

    x: FloatArray
    share: FloatArray


def silu_forward(x: FloatArray) -> tuple[FloatArray, SiLUCache]:
    """``y = x σ(x)``."""
    share = sigmoid(x)
    return x * share, SiLUCache(x, share)


def silu_backward(d_y: FloatArray, cache: SiLUCache) -> FloatArray:
    """``d_x = σ(x) (1 + x (1 − σ(x))) ⊙ d_y``."""
    x, share = cache
    return share * (1.0 + x * (1.0 - share)) * d_y


class GLUCache(NamedTuple):
    """What `glu_backward` needs."""

    value: FloatArray
    gate: FloatArray


def glu_forward(x: FloatArray) -> tuple[FloatArray, GLUCache]:
    """``y = a ⊙ σ(g)`` of the halves [a; g] of the last axis (Dauphin et al. 2017, eq. 1): (..., 2C) → (..., C)."""
    value, gate = np.split(x, 2, axis=-1)
    gate = sigmoid(gate)
    return value * gate, GLUCache(value, gate)


def glu_backward(d_y: FloatArray, cache: GLUCache) -> FloatArray:
    """``d_a = σ(g) ⊙ d_y`` and ``d_g = a ⊙ σ(g) (1 − σ(g)) ⊙ d_y``."""
    value, gate = cache
    return np.concatenate([d_y * gate, d_y * value * gate * (1.0 - gate)], axis=-1)


def dropout_forward(
    x: FloatArray, rate: float, rng: np.random.Generator | None, *, is_shared: bool = False
) -> tuple[FloatArray, FloatArray | None]:
    """``y = x ⊙ m / (1 − rate)`` with m drawn from {0, 1} and P(m = 0) = rate (Srivastava et al. 2014).

    Parameters
    ----------
    x : array
    rate : float
        In [0, 1).
    rng : Generator or None
        Where m is drawn from; none in evaluation: y = x.
    is_shared : bool
        One mask a row for all steps of x (B, T, ...): variational dropout (Gal & Ghahramani 2016).

    Returns
    -------
    y : array
    scaled_mask : array or None
        The cache, m / (1 − rate).
    """
    if rng is None or rate == 0.0:
        return x, None
    shape = (len(x), 1, *x.shape[2:]) if is_shared else x.shape
    scaled_mask = (rng.random(shape, dtype=np.float32) >= rate).astype(x.dtype) / (1.0 - rate)
    return x * scaled_mask, scaled_mask


def dropout_backward(d_y: FloatArray, scaled_mask: FloatArray | None) -> FloatArray:
    """``d_x = d_y ⊙ m / (1 − rate)``."""
    return d_y if scaled_mask is None else d_y * scaled_mask


# --- products --------------------------------------------------------------------------------------------------------


def few_rows_product(x: FloatArray, weight: FloatArray) -> FloatArray:
    """``x Wᵀ`` of one step: (B, I) and (O, I) give (B, O).

    For a batch of ordinary size BLAS is up to a third faster with the large matrix on the left; many rows are better
    off with a result that lies row by row.
    """
    product: FloatArray = (weight @ x.T).T if len(x) < 100 else x @ weight.T
    return product


class LinearCache(NamedTuple):
    """What `linear_backward` needs."""

    x: FloatArray
    weight: FloatArray


class LinearGradients(NamedTuple):
    """∂L/∂ of the arguments of `linear_forward`."""

    d_x: FloatArray
    d_weight: FloatArray
    d_bias: FloatArray


def linear_forward(x: FloatArray, weight: FloatArray, bias: FloatArray | None = None) -> tuple[FloatArray, LinearCache]:
    """``y = x Wᵀ + b``.

    Parameters
    ----------
    x : (..., I) array
    weight : (O, I) array
    bias : (O,) array, optional

    Returns
    -------
    y : (..., O) array
    cache : LinearCache
    """
    flat = x.reshape(-1, x.shape[-1])  # (..., I) -> (N, I): one product whatever the leading axes
    y = flat @ weight.T
    if bias is not None:
        y += bias
    return y.reshape(*x.shape[:-1], len(weight)), LinearCache(x, weight)


def linear_backward(d_y: FloatArray, cache: LinearCache) -> LinearGradients:
    """``d_x = d_y W``, ``d_W = Σ d_yᵀ x``, ``d_b = Σ d_y``, sums over all leading axes."""
    x, weight = cache
    flat_d, flat_x = d_y.reshape(-1, d_y.shape[-1]), x.reshape(-1, x.shape[-1])  # (N, O), (N, I)
    return LinearGradients((flat_d @ weight).reshape(x.shape), flat_d.T @ flat_x, flat_d.sum(axis=0))


class EmbeddingCache(NamedTuple):
    """What `embedding_backward` needs."""

    ids: IntArray
    weight: FloatArray


def embedding_forward(ids: IntArray, weight: FloatArray) -> tuple[FloatArray, EmbeddingCache]:
    """``y = W[ids]``: (...) ids and a (V, O) table give (..., O)."""
    return weight[ids], EmbeddingCache(ids, weight)


def embedding_backward(d_y: FloatArray, cache: EmbeddingCache) -> FloatArray:
    """``d_W[v] = Σ d_y`` over all positions with id v."""
    ids, weight = cache
    flat, rows = ids.ravel(), d_y.reshape(-1, d_y.shape[-1])
    d_weight = np.zeros_like(weight)
    if len(flat):
        order = np.argsort(flat, kind="stable")  # equal ids side by side, then one sum for each
        found, first = np.unique(flat[order], return_index=True)
        d_weight[found] = np.add.reduceat(rows[order], first, axis=0)
    return d_weight


# --- normalisation ---------------------------------------------------------------------------------------------------


class LayerNormCache(NamedTuple):
    """What `layer_norm_backward` needs."""

    normal: FloatArray
    inverse_std: FloatArray
    weight: FloatArray


class LayerNormGradients(NamedTuple):
    """∂L/∂ of the arguments of `layer_norm_forward`."""

    d_x: FloatArray
    d_weight: FloatArray
    d_bias: FloatArray


def layer_norm_forward(
    x: FloatArray, weight: FloatArray, bias: FloatArray, *, epsilon: float = 1e-5
) -> tuple[FloatArray, LayerNormCache]:
    """``y = w ⊙ x̂ + b``, ``x̂ = (x − mean) / √(var + ε)`` over the last axis (Ba et al. 2016, eq. 4).

    Parameters
    ----------
    x : (..., D) array
    weight, bias : (D,) arrays
    epsilon : float
    """
    centred = x - x.mean(axis=-1, keepdims=True)
    inverse_std = 1.0 / np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + epsilon)
    normal = centred * inverse_std
    return normal * weight + bias, LayerNormCache(normal, inverse_std, weight)


def layer_norm_backward(d_y: FloatArray, cache: LayerNormCache) -> LayerNormGradients:
    """``d_x = (d_x̂ − mean(d_x̂) − x̂ ⊙ mean(d_x̂ ⊙ x̂)) / std`` with ``d_x̂ = w ⊙ d_y``."""
    normal, inverse_std, weight = cache
    leading = tuple(range(d_y.ndim - 1))
    d_normal = d_y * weight
    along = (d_normal * normal).mean(axis=-1, keepdims=True)
    d_x = (d_normal - d_normal.mean(axis=-1, keepdims=True) - normal * along) * inverse_std
    return LayerNormGradients(d_x, (d_y * normal).sum(axis=leading), d_y.sum(axis=leading))


# --- softmax ---------------------------------------------------------------------------------------------------------


def masked_softmax_forward(scores: FloatArray, allowed: BoolArray) -> tuple[FloatArray, FloatArray]:
    """``p_j = e^{s_j} / Σ_{k allowed} e^{s_k}`` over the last axis, 0 where not allowed; all 0 where nothing is.

    Scores that are not allowed may hold anything, NaN included: they are never read.

    Parameters
    ----------
    scores : (..., S) array
    allowed : bool array that broadcasts to (..., S)
        True = may be attended to.

    Returns
    -------
    weights : (..., S) array
        Also the cache.
    """
    shifted = np.where(allowed, scores, -np.inf)
    top = shifted.max(axis=-1, keepdims=True, initial=-np.inf)
    weights: FloatArray = np.exp(shifted - np.where(np.isfinite(top), top, 0.0))
    total = weights.sum(axis=-1, keepdims=True)
    weights /= np.where(total > 0.0, total, 1.0)
    return weights, weights


def masked_softmax_backward(d_weights: FloatArray, weights: FloatArray) -> FloatArray:
    """``d_s = p ⊙ (d_p − Σ p ⊙ d_p)``: the Jacobian ``diag(p) − p pᵀ`` times ``d_p``; 0 where p is 0."""
    d_scores: FloatArray = weights * (d_weights - (weights * d_weights).sum(axis=-1, keepdims=True))
    return d_scores


def log_softmax(logits: FloatArray) -> FloatArray:
    """``ln p_v = z_v − ln Σ e^z`` over the last axis, in nats."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    log_probs: FloatArray = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return log_probs


class CrossEntropyCache(NamedTuple):
    """What `cross_entropy_backward` needs."""

    probabilities: FloatArray
    labels: IntArray
    is_label: BoolArray
    smoothing: float


def cross_entropy_forward(
    logits: FloatArray, labels: IntArray, is_label: BoolArray, *, smoothing: float = 0.0
) -> tuple[FloatArray, CrossEntropyCache]:
    """``L = −Σ_t Σ_v q_v ln p_v``, ``q = (1 − ε) · one-hot + ε / V``: a sum over labels, in nats, not a mean.

    Parameters
    ----------
    logits : (..., V) array
    labels : (...) int array
    is_label : (...) bool array
        False where there is no label; such positions cost nothing and get no gradient.
    smoothing : float
        ε, spread over all V classes (Szegedy et al. 2016, section 7).

    Returns
    -------
    loss : 0-d array
    cache : CrossEntropyCache
    """
    log_probs = log_softmax(logits)
    correct = np.take_along_axis(log_probs, labels[..., None], axis=-1)[..., 0]
    losses = -(1.0 - smoothing) * correct - smoothing * log_probs.mean(axis=-1)
    loss = np.asarray(losses.sum(where=is_label))
    return loss, CrossEntropyCache(np.exp(log_probs), labels, is_label, smoothing)


def cross_entropy_backward(d_loss: FloatArray | float, cache: CrossEntropyCache) -> FloatArray:
    """``d_z = (p − q) d_L`` at labels, 0 elsewhere."""
    probabilities, labels, is_label, smoothing = cache
    d_logits: FloatArray = probabilities - smoothing / probabilities.shape[-1]
    correct = np.take_along_axis(d_logits, labels[..., None], axis=-1) - (1.0 - smoothing)
    np.put_along_axis(d_logits, labels[..., None], correct, axis=-1)
    d_logits *= is_label[..., None]
    d_logits *= d_loss
    return d_logits
