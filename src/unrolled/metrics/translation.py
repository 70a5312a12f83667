"""BLEU and chrF of detokenised text, computed by sacrebleu (Post 2018) and reported with its signature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from unrolled.errors import ConfigError, DataError, MissingExtraError

__all__ = ["CorpusScore", "bleu", "chrf"]


@dataclass(frozen=True)
class CorpusScore:
    """A score from 0 to 100 of a whole test set; scores compare only where their signatures are equal."""

    name: str
    value: float
    signature: str

    def __str__(self) -> str:
        return f"{self.name} {self.value:.1f}  {self.signature}"


def bleu(predictions: Sequence[str], references: Sequence[Sequence[str]], *, tokenise: str = "13a") -> CorpusScore:
    """BLEU (Papineni et al. 2002).

    Parameters
    ----------
    predictions : sequence of str
        Plain text, one a source.
    references : sequence of sequences of str
        The accepted texts of each source, at least one; their number may differ.
    tokenise : str
        How sacrebleu cuts words: `13a` for plain text, `none` for text that is cut already, `zh`, `char`, `intl`, ….

    Raises
    ------
    ConfigError
        If sacrebleu has no such tokenisation here.
    DataError
        If there are no items, not as many references as predictions, or a source without a reference.
    MissingExtraError
        If sacrebleu is not installed.
    """
    columns = _columns(predictions, references)
    metrics = _sacrebleu()
    known = sorted(metrics.BLEU.TOKENIZERS)
    if tokenise not in known:
        raise ConfigError(f"BLEU: expected a tokenisation of {', '.join(known)}, got {tokenise!r}")
    try:
        metric = metrics.BLEU(tokenize=tokenise, force=True)  # or it speaks of full stops on standard error
    except (ImportError, RuntimeError) as error:
        first_line = str(error).strip().partition("\n")[0]
        raise ConfigError(f"BLEU: tokenisation {tokenise} is not installed: {first_line}") from error
    return _score(metric, predictions, columns)


def chrf(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> CorpusScore:
    """F-score of character n-grams, chrF2 (Popović 2015); arguments and errors as for `bleu`."""
    columns = _columns(predictions, references)
    return _score(_sacrebleu().CHRF(), predictions, columns)


def _score(metric: Any, predictions: Sequence[str], columns: list[list[str | None]]) -> CorpusScore:
    found = metric.corpus_score(list(predictions), columns)
    return CorpusScore(str(found.name), float(found.score), str(metric.get_signature()))


def _columns(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> list[list[str | None]]:
    """First references of all sources, second references of all sources, …; none where a source has no more."""
    if len(predictions) != len(references):
        raise DataError(f"expected references of {len(predictions)} predictions, got {len(references)}")
    if not predictions:
        raise DataError("nothing to evaluate: no items")
    if not all(references):
        raise DataError(f"prediction {next(i for i, r in enumerate(references) if not r) + 1} has no reference")
    most = max(map(len, references))
    return [[answers[n] if n < len(answers) else None for answers in references] for n in range(most)]


def _sacrebleu() -> Any:
    try:
        import sacrebleu.metrics
    except ImportError as error:
        raise MissingExtraError("sacrebleu", extra="translate", purpose="measuring BLEU and chrF") from error
    return sacrebleu.metrics
