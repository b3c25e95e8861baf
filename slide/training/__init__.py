"""Training, evaluation and metrics; not loaded by ``import slide``."""

from slide.training.coordination import CoreShare
from slide.training.evaluation import (
    calibration_error,
    evaluate,
    inverse_propensities,
    ndcg_at_k,
    precision_at_k,
    psp_at_k,
    recall_at_k,
    reciprocal_ranks,
)
from slide.training.lr_schedules import constant, linear
from slide.training.monitor import Monitor
from slide.training.options import TrainingOptions
from slide.training.trainer import Trainer
from slide.utils.checks import DivergenceError

__all__ = [
    "CoreShare",
    "DivergenceError",
    "Monitor",
    "Trainer",
    "TrainingOptions",
    "calibration_error",
    "constant",
    "evaluate",
    "inverse_propensities",
    "linear",
    "ndcg_at_k",
    "precision_at_k",
    "psp_at_k",
    "recall_at_k",
    "reciprocal_ranks",
]
