"""Training, evaluation and metrics; not loaded by ``import slide``."""

from slide.training.coordination import CoreShare as CoreShare
from slide.training.evaluation import calibration_error as calibration_error
from slide.training.evaluation import chance_calibration_error as chance_calibration_error
from slide.training.evaluation import evaluate as evaluate
from slide.training.evaluation import inverse_propensities as inverse_propensities
from slide.training.evaluation import ndcg_at_k as ndcg_at_k
from slide.training.evaluation import precision_at_k as precision_at_k
from slide.training.evaluation import psp_at_k as psp_at_k
from slide.training.evaluation import recall_at_k as recall_at_k
from slide.training.evaluation import reciprocal_ranks as reciprocal_ranks
from slide.training.loggers import Logger as Logger
from slide.training.lr_schedules import constant as constant
from slide.training.lr_schedules import linear as linear
from slide.training.monitor import Monitor as Monitor
from slide.training.trainer import Trainer as Trainer
from slide.training.trainer import TrainingOptions as TrainingOptions
from slide.utils.checks import DivergenceError as DivergenceError
