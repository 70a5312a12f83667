"""One search for every engine: greedy, beam, sampling, scoring, ensembles."""

from unrolled.decoding.beam import beam_search
from unrolled.decoding.engine import BANNED, Engine, Stepper
from unrolled.decoding.ensemble import Ensemble
from unrolled.decoding.hypothesis import Hypothesis, LengthPenalty
from unrolled.decoding.rollout import greedy, sample
from unrolled.decoding.scoring import score
from unrolled.next_symbol import SamplingPolicy

__all__ = [
    "BANNED",
    "Engine",
    "Ensemble",
    "Hypothesis",
    "LengthPenalty",
    "SamplingPolicy",
    "Stepper",
    "beam_search",
    "greedy",
    "sample",
    "score",
]
