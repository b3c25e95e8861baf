"""scikit-learn's own checks of an estimator."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from slide import SlideClassifier

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore")]
SPARSE = "scores and sets of labels are sparse matrices, as dense ones would not fit in memory"
STEPS = "steps have other rows: one of weight 2 is not two rows, and one of weight 0 is left out"
EXPECTED = {
    "check_sample_weight_equivalence_on_dense_data": STEPS,
    "check_sample_weight_equivalence_on_sparse_data": STEPS,
    "check_classifiers_classes": SPARSE,
    "check_classifiers_multilabel_representation_invariance": SPARSE,
    "check_classifiers_multilabel_output_format_predict": SPARSE,
    "check_classifiers_multilabel_output_format_predict_proba": SPARSE,
    "check_classifiers_multilabel_output_format_decision_function": SPARSE,
    "check_decision_proba_consistency": SPARSE,
    "check_classifiers_train": "its rows have two features, whose ratio is all that is left of "
    "them at length 1; and " + SPARSE,
}


@parametrize_with_checks(
    [SlideClassifier(max_epochs=20, random_state=0)], expected_failed_checks=lambda _: EXPECTED
)
def test_checks(estimator, check):
    check(estimator)
