"""BLEU and chrF of what a model wrote, line by line of its test file."""

from __future__ import annotations

from collections.abc import Sequence

from unrolled.config import Data
from unrolled.errors import MissingExtraError
from unrolled.metrics import CorpusScore, bleu, chrf
from unrolled.text import Pairs, normalise, recompose

__all__ = ["translation_scores"]

SUBWORDS = ("bpe", "unigram")
TOKENISED_SHARE = 0.5


def translation_scores(
    pairs: Pairs, predictions: Sequence[str], data: Data, *, tokenise: str | None
) -> tuple[tuple[CorpusScore, ...], list[str]]:
    """Scores of whole texts, and notes; every line counts once, as in published figures.

    Parameters
    ----------
    pairs : Pairs
        Of the test file.
    predictions : sequence of str
        One for each line of the file.
    data : Data
        Of the model: whether its targets are sentences (subwords), and their normal form.
    tokenise : str, optional
        How words are cut, as for `metrics.bleu`; none for `13a` where targets are sentences, and no scores elsewhere.
    """
    if tokenise is None and data.target.units not in SUBWORDS:
        return (), []
    form = data.normal_form
    references = [[recompose(normalise(text, form), form)] for text in pairs.targets or ()]
    written = [predictions[line - 1] for line in pairs.lines.tolist()]
    try:
        scores = bleu(written, references, tokenise=tokenise or "13a"), chrf(written, references)
    except MissingExtraError as error:
        if tokenise is not None:
            raise
        return (), [str(error)]
    num_cut = sum(text.endswith((" .", " !", " ?")) for (text,) in references)
    if tokenise is None and num_cut > TOKENISED_SHARE * len(references):
        return scores, [
            f"{num_cut} of {len(references)} answers end in a sign set apart: for such text use --bleu none"
        ]
    return scores, []
