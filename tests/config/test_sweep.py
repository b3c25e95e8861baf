"""Names of the folders of a sweep's runs."""

from slide.config.command import LABEL_LENGTH, label_of


def test_values_may_have_equals_signs():
    assert label_of(["network.hidden=[64]"]) == "hidden=_64_"
    assert label_of(["+a.b=1", "seed=2"]) == "b=1,seed=2"


def test_cut_labels_differ_where_their_ends_do():
    alike = [f"a_key_{i}=some_value_{i}" for i in range(5)]
    labels = [label_of([*alike, f"seed={seed}"]) for seed in (1, 2)]
    assert labels[0] != labels[1]
    assert labels[0] == label_of([*alike, "seed=1"])
    assert {len(label) for label in labels} == {LABEL_LENGTH}
    assert labels[0].startswith("a_key_0=some_value_0,a_key_1=")
