"""A Transformer decoder without its causal mask: what training shows, and what generation does."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from unrolled.diagnosis import check_causal
from unrolled.figures import Panel, series
from unrolled.studies.learning import WINDOW, fit
from unrolled.studies.study import Interval, Result, Size, Study, curve, pick

__all__ = ["STUDY"]

DIGITS, LENGTH, WIDTH, BATCH = 10, 12, 32, 32
GIVEN = 3
"""Digits that are given before generation: start and difference follow from them."""
CAPTION = (
    "Loss while a small Transformer learns sequences x, x + d, x + 2 d … modulo 10. Without the causal mask it reads"
    " the answer from its input: the loss falls below what any honest model can reach, and what it generates is wrong."
)


class Decoder(nn.Module):
    """Two of PyTorch's own Transformer layers over digits, with or without the causal mask."""

    def __init__(self, *, is_causal: bool) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(DIGITS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, DIGITS)
        self.is_causal = is_causal

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (B, T, 10) of the digit after each of (B, T)."""
        T = tokens.shape[1]
        mask = torch.ones(T, T, dtype=torch.bool).triu(1) if self.is_causal else None  # True = hidden
        states = self.layers(self.embed(tokens) + self.place.weight[:T], mask=mask)
        logits: Tensor = self.head(states)
        return logits


def measure(size: Size, tell: Callable[[str], None]) -> Result:
    """Training loss and errors of generation, with the mask and without it."""
    seeds = range(pick(size, tiny=2, default=4, full=8))
    steps = pick(size, tiny=30, default=600, full=1500)
    honest = np.log(DIGITS) / (LENGTH - 1)
    rows, curves, found = [], {}, {}
    for name, is_causal in (("masked", True), ("not masked", False)):
        tell(name)
        runs = [_one(is_causal, steps, seed) for seed in seeds]
        losses = np.array([losses for losses, _, _ in runs])
        curves[name] = curve(range(0, steps, WINDOW), [Interval.of([*column]) for column in losses.T])
        found[name] = Interval.of([*losses[:, -1]]), Interval.of([wrong for _, wrong, _ in runs])
        leaks = sum(is_leaking for _, _, is_leaking in runs)
        rows.append((name, *found[name], f"{leaks} of {len(seeds)}"))
    curves["lowest honest loss"] = curve([0, steps], [Interval.of([honest])] * 2)
    held = found["not masked"][0].high < honest and found["not masked"][1].low > found["masked"][1].high
    verdict = (
        f"without the mask the loss is {found['not masked'][0]} nats a digit, where an honest model cannot go below"
        f" {honest:.3f}, and {100 * found['not masked'][1].mean:.0f} % of the generated digits are wrong; with it"
        f" {found['masked'][0]} and {100 * found['masked'][1].mean:.1f} %. `check_causal` names every unmasked model"
    )
    panel = Panel(curves, "optimiser step", "training loss (nats a digit)")
    columns = ("decoder", "training loss", "wrong digits, generated", "future leak found")
    return Result(columns, tuple(rows), series([panel], CAPTION), held, verdict)


def _one(is_causal: bool, steps: int, seed: int) -> tuple[list[float], float, bool]:
    """Losses, share of wrong digits in generation, and whether the diagnosis sees a leak."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Decoder(is_causal=is_causal)
    losses = fit(model, _draw, _loss, steps=steps, seed=seed)
    text = _sequences(torch.Generator().manual_seed(1000 + seed), 500)
    is_leaking = bool(check_causal(model, (text[:4, :-1], text[:4, 1:])))
    return losses, _wrong(model, text), is_leaking


def _sequences(generator: torch.Generator, count: int) -> Tensor:
    """x, x + d, x + 2 d, … modulo 10, (count, LENGTH)."""
    start, difference = torch.randint(DIGITS, (2, count, 1), generator=generator)
    text: Tensor = (start + difference * torch.arange(LENGTH)) % DIGITS
    return text


def _draw(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    text = _sequences(generator, BATCH)
    return text[:, :-1], text[:, 1:]


def _loss(logits: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(logits.flatten(0, 1), labels.flatten())


@torch.no_grad()
def _wrong(model: nn.Module, text: Tensor) -> float:
    """Share of wrong digits where a model goes on by itself after the first few."""
    model.eval()
    written = text[:, :GIVEN]
    while written.shape[1] < LENGTH:
        written = torch.cat([written, model(written)[:, -1:].argmax(-1)], 1)
    return float((written != text)[:, GIVEN:].double().mean())


STUDY = Study(
    "causal-mask",
    "Without a causal mask the training loss looks better than it can be, and generation fails",
    "Vaswani et al. 2017, section 3.2.3",
    measure,
)
