"""Linear classifiers that re-rank the candidates of a network, and their training."""

from slide.ranking.fitting import fit_ranker as fit_ranker
from slide.ranking.fitting import network_candidates as network_candidates
from slide.ranking.linear_ranker import LinearRanker as LinearRanker
