"""A re-ranker of the labels that a network, linear classifiers and near training rows name."""

from slide.ranking.associations import Associations as Associations
from slide.ranking.ensemble import EnsembleRanker as EnsembleRanker
from slide.ranking.linear_classifiers import LinearClassifiers as LinearClassifiers
from slide.ranking.neighbours import Neighbours as Neighbours
from slide.ranking.ranked import Ranked as Ranked
