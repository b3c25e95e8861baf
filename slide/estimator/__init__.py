"""A classifier with the interface of scikit-learn."""

from slide.estimator.classifier import SlideClassifier as SlideClassifier
from slide.estimator.saving import save as save
