"""Measurements on predictions: error rates with intervals, comparison, perplexity, and what goes wrong where."""

from unrolled.metrics.bootstrap import Counts, Difference, Estimate, bootstrap_rate, paired_difference
from unrolled.metrics.comparison import Comparison, compare
from unrolled.metrics.edits import Confusion, Errors, confusions, count_errors
from unrolled.metrics.evaluation import Evaluation, evaluate
from unrolled.metrics.parts import Group, Item
from unrolled.metrics.perplexity import bits_per_unit, perplexity
from unrolled.metrics.references import References
from unrolled.metrics.report import item_texts
from unrolled.metrics.translation import CorpusScore, bleu, chrf

__all__ = [
    "Comparison",
    "Confusion",
    "CorpusScore",
    "Counts",
    "Difference",
    "Errors",
    "Estimate",
    "Evaluation",
    "Group",
    "Item",
    "References",
    "bits_per_unit",
    "bleu",
    "bootstrap_rate",
    "chrf",
    "compare",
    "confusions",
    "count_errors",
    "evaluate",
    "item_texts",
    "paired_difference",
    "perplexity",
]
