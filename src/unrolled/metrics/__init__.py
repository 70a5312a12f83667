"""Measurements on predictions: error rates with intervals, comparison, perplexity, and what goes wrong where."""

from unrolled.metrics.bootstrap import Counts, Difference, Estimate, bootstrap_rate, paired_difference
from unrolled.metrics.comparison import Comparison, compare
from unrolled.metrics.edits import Confusion, Errors, confusions, count_errors
from unrolled.metrics.evaluation import Evaluation, evaluate
from unrolled.metrics.parts import Group, Item
from unrolled.metrics.references import References

__all__ = [
    "Comparison",
    "Confusion",
    "Counts",
    "Difference",
    "Errors",
    "Estimate",
    "Evaluation",
    "Group",
    "Item",
    "References",
    "bootstrap_rate",
    "compare",
    "confusions",
    "count_errors",
    "evaluate",
    "paired_difference",
]
