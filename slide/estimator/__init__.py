"""A classifier with the interface of scikit-learn; not loaded by ``import slide``."""

from slide.estimator.classifier import SlideClassifier as SlideClassifier
