"""The re-ranker: experts score labels, and a judge combines what they say.

The experts are the network, linear classifiers, the nearest training rows, associations of features
with labels, and in a knowledge graph the answers to similar questions. The judge, gradient-boosted
trees, learns from held-out rows (stacking).
"""

from slide.ranking.associations import Associations as Associations
from slide.ranking.ensemble import EnsembleRanker as EnsembleRanker
from slide.ranking.linear_classifiers import LinearClassifiers as LinearClassifiers
from slide.ranking.neighbours import Neighbours as Neighbours
from slide.ranking.ranked import Ranked as Ranked
from slide.ranking.substitutes import Substitutes as Substitutes
