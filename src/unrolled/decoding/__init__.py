"""One search for every engine: greedy, beam, sampling, scoring, ensembles; and running text, read and written."""

from unrolled.decoding.beam import beam_search
from unrolled.decoding.engine import BANNED, Engine, Stepper
from unrolled.decoding.ensemble import Ensemble
from unrolled.decoding.hypothesis import Hypothesis, LengthPenalty
from unrolled.decoding.reading import Context, TextEngine, text_log_probs
from unrolled.decoding.rollout import greedy, sample
from unrolled.decoding.scoring import score
from unrolled.decoding.writing import write
from unrolled.next_symbol import SamplingPolicy

__all__ = [
    "BANNED",
    "Context",
    "Engine",
    "Ensemble",
    "Hypothesis",
    "LengthPenalty",
    "SamplingPolicy",
    "Stepper",
    "TextEngine",
    "beam_search",
    "greedy",
    "sample",
    "score",
    "text_log_probs",
    "write",
]
