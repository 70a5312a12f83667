"""One search for every engine: greedy, beam, sampling, scoring, ensembles."""

from unrolled.decoding.beam import beam_search
from unrolled.decoding.engine import BANNED, Engine, SamplingPolicy, Stepper
from unrolled.decoding.hypothesis import Hypothesis, LengthPenalty
from unrolled.decoding.rollout import greedy, sample

__all__ = [
    "BANNED",
    "Engine",
    "Hypothesis",
    "LengthPenalty",
    "SamplingPolicy",
    "Stepper",
    "beam_search",
    "greedy",
    "sample",
]
