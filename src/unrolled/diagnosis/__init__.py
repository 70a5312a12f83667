"""Why does it not learn? Checks and measurements for any `torch.nn.Module` or callable.

`examine(model, batch)` runs everything that applies and returns findings, worst first. Each has one of the names in
`FAULTS`. `examine_run(folder)` does so for a whole run, its log and its data. Nothing is printed, and the model is left
as it was found. Importing this room needs PyTorch; without it, the import raises `MissingExtraError`.
"""

from unrolled.errors import MissingExtraError

try:
    import torch
except ImportError as absent:
    raise MissingExtraError("torch", extra="train", purpose="diagnosis") from absent

from unrolled.diagnosis.activity import Activations, Activity, activations
from unrolled.diagnosis.adapter import Adapter
from unrolled.diagnosis.attention import AttentionNumbers, attention_numbers, attention_weights, check_attention
from unrolled.diagnosis.batch import Batch
from unrolled.diagnosis.dependence import check_batch_independence, check_causal
from unrolled.diagnosis.doctor import examine_run
from unrolled.diagnosis.evaluation import check_eval_mode, check_finite
from unrolled.diagnosis.examine import Examination, examine
from unrolled.diagnosis.exposure import ExposureGap, exposure_gap
from unrolled.diagnosis.findings import FAULTS, Fault, Finding, Where
from unrolled.diagnosis.flow import GradientFlow, gradient_flow
from unrolled.diagnosis.material import Material, PairMaterial, TextMaterial, open_material
from unrolled.diagnosis.memory import (
    ForgetGates,
    JacobianNorms,
    check_forget_bias,
    check_memory,
    forget_gates,
    gate_values,
    jacobian_norms,
)
from unrolled.diagnosis.objective import check_first_loss, check_labels
from unrolled.diagnosis.overfitting import check_overfits_one_batch
from unrolled.diagnosis.overlap import check_overlap
from unrolled.diagnosis.padding import check_padding
from unrolled.diagnosis.source import check_source
from unrolled.diagnosis.state import check_state_handling, detached
from unrolled.diagnosis.stepping import check_stepwise

__all__ = [
    "FAULTS",
    "Activations",
    "Activity",
    "Adapter",
    "AttentionNumbers",
    "Batch",
    "Examination",
    "ExposureGap",
    "Fault",
    "Finding",
    "ForgetGates",
    "GradientFlow",
    "JacobianNorms",
    "Material",
    "PairMaterial",
    "TextMaterial",
    "Where",
    "activations",
    "attention_numbers",
    "attention_weights",
    "check_attention",
    "check_batch_independence",
    "check_causal",
    "check_eval_mode",
    "check_finite",
    "check_first_loss",
    "check_forget_bias",
    "check_labels",
    "check_memory",
    "check_overfits_one_batch",
    "check_overlap",
    "check_padding",
    "check_source",
    "check_state_handling",
    "check_stepwise",
    "detached",
    "examine",
    "examine_run",
    "exposure_gap",
    "forget_gates",
    "gate_values",
    "gradient_flow",
    "jacobian_norms",
    "open_material",
]
