"""The parts of a run that learn: a network and an optimizer from a configuration."""

from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from slide.config.defaults import run_device
from slide.config.samplers import build_sampler, hidden_samplers
from slide.data import SparseDataset
from slide.distributed import Group, ShardedNetwork
from slide.nn import SlideNetwork
from slide.optim import RowSparseAdam
from slide.sampling import FullSampler, Sampler
from slide.utils import checks


class SharedRows(NamedTuple):
    """The processes that share the rows of a network, and how often each row is used.

    Attributes:
        group: the processes.
        feature_counts: ``(D,)``, of each feature in the training rows; None: not known.
        label_counts: ``(N,)``, of each label.
    """

    group: Group
    feature_counts: np.ndarray | None = None
    label_counts: np.ndarray | None = None


def shared_rows(group: Group, data: SparseDataset) -> SharedRows | None:
    """How a group shares the rows of a network for some data; None for a single process."""
    if group.size == 1:
        return None
    split = data.train
    features = np.bincount(split.features.indices, minlength=data.num_features)
    labels = np.bincount(split.labels.indices, minlength=data.num_labels)
    return SharedRows(group, features, labels)


def build_network(
    config: DictConfig, features: int, labels: int, shared: SharedRows | None = None
) -> SlideNetwork:
    """The network with its samplers.

    Args:
        config: from `slide.config.read_config`, after `slide.config.fill_in`.
        features: number of features.
        labels: number of labels.
        shared: the processes that share its rows; None: this one has all.

    Raises:
        ValueError: for impossible settings.

    Example:
        >>> from slide.config import build_network, fill_in, read_config
        >>> config = read_config(["network.hidden=[8]"])
        >>> fill_in(config, num_rows=1000, num_labels=40)
        >>> build_network(config, features=60, labels=40).output.weight.shape
        torch.Size([40, 8])
    """
    sampler, network = build_sampler(config), config.network
    hidden = hidden_samplers(sampler, network.hidden, network.hidden_active, config.seed)
    for i, size in enumerate(network.hidden_active):
        if size is not None and not _fits_hidden(sampler, first=i == 0):
            shown = list(network.hidden_active)
            raise ValueError(
                f"hidden_active={shown} needs sampler=lsh or sampler=uniform; in the first layer, "
                "whose inputs are sparse, sampler=uniform or sampler=slide2020"
            )
    keys = ("dropout", "precision", "init_scale", "output_scale", "input_dropout")
    options = {key: network[key] for key in keys}
    shape = features, list(network.hidden), labels, sampler
    if shared is not None and shared.group.size > 1:
        options |= {"hidden_samplers": hidden, "seed": config.seed}
        made = ShardedNetwork(*shape, **shared._asdict(), **options)
    else:
        made = SlideNetwork(*shape, hidden, **options)
        if network.get("host_rows", False):  # Runs of earlier versions have no such key.
            made.keep_rows_on_host()
    if scale := network.get("bias_scale", 0):  # Runs of earlier versions have no such key.
        checks.positive("network.bias_scale", scale)
        with torch.no_grad():
            for layer in made.layers():
                assert layer.bias is not None
                layer.bias.normal_(0, scale)
    return made.to(run_device(config))  # Drawn on the CPU: the first weights are the same anywhere.


def build_optimizer(config: DictConfig, network: SlideNetwork) -> RowSparseAdam:
    """The optimizer of all parameters of ``network``.

    Args:
        config: from `slide.config.read_config`.
        network: the network to train.

    Raises:
        ValueError: for impossible settings.

    Example:
        >>> import slide
        >>> from slide.config import build_optimizer, read_config
        >>> network = slide.SlideNetwork(60, [8], 40, slide.FullSampler)
        >>> optimizer = build_optimizer(read_config(["optimizer.lr=0.01"]), network)
        >>> [group["lr"] for group in optimizer.param_groups]
        [0.01, 0.04]
    """
    groups = network.parameter_groups(config.optimizer.lr, config.optimizer.input_rate)
    return instantiate(without(config, "optimizer", "input_rate"))(groups)


def _fits_hidden(sampler: partial[Sampler], first: bool) -> bool:
    """Whether a hidden layer can have this sampler; the inputs of the first layer are sparse."""
    proposer = sampler.keywords.get("proposer")
    kind = getattr(proposer, "func", proposer)
    takes_sparse = getattr(kind, "sparse_inputs", True)
    # Neurons of hidden layers are no labels.
    without_labels = not getattr(kind, "needs_labels", False)
    return sampler.func is not FullSampler and without_labels and (takes_sparse or not first)


def without(config: DictConfig, group: str, key: str) -> DictConfig:
    """A group of a configuration without one of its keys."""
    config = config.copy()  # The whole of it, because values may refer to other groups.
    OmegaConf.set_struct(config, False)
    config[group].pop(key)
    return config[group]
