"""Synthetic tasks: examples without end from a seed, each with the best that a model without input can do."""

from unrolled.text.tasks.blind import Blind
from unrolled.text.tasks.memory import draw_vectors, fixed_vectors, vector_task_of
from unrolled.text.tasks.pairs import (
    PREFIX,
    draw_pairs,
    fixed_pairs,
    is_task,
    named_task,
    task_of,
    task_type,
    vocabularies,
)

__all__ = [
    "PREFIX",
    "Blind",
    "draw_pairs",
    "draw_vectors",
    "fixed_pairs",
    "fixed_vectors",
    "is_task",
    "named_task",
    "task_of",
    "task_type",
    "vector_task_of",
    "vocabularies",
]
