"""Output biases before the first step."""

import slide
from slide.training.loop import start_biases


def test_biases_start_where_the_loss_says():
    """A loss of one's own may say nothing."""
    labels = slide.Pattern.from_lists([[0, 1], [1]])
    network = slide.SlideNetwork(6, [4], 5, slide.FullSampler)
    start_biases(network, lambda values, active: values.mean(), labels)
    assert not network.output.bias.any()
    start_biases(network, slide.ActiveLoss("squared_hinge"), labels)
    assert network.output.bias.any()
    assert network.output.bias.argmax() == 1
