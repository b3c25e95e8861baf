"""A network whose first and last layers are shared out among processes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slide.backend import on_device
from slide.distributed.group import Group
from slide.distributed.sharded_layers import ShardedInputLinear, ShardedOutputLinear
from slide.distributed.shares import Shares, uniform_rows
from slide.nn import SlideNetwork
from slide.nn.network import GatheredWeights, SamplerFactory
from slide.runtime import own_draws
from slide.sampling import FullSampler
from slide.sparse import CSR, as_csr
from slide.utils.random_keys import random_key

# What the keys of draws are for.
_FIRST, _OUTPUT, _HIDDEN, _DROPOUT = range(4)
# The layer of a rank's own outputs, in the layer of outputs.
_LOCAL = "output.local."


class ShardedNetwork(SlideNetwork):
    """`slide.SlideNetwork` on several processes, each with a share of the features and labels.

    All ranks see the same batches. A training step sends one ``(B, H)`` tensor for the first layer
    and one for the gradients of the last one, however many features and labels there are. Hidden
    layers are the same on all ranks. Dropout draws from a counter, so all ranks draw the same. With
    a complete set of outputs, the results do not depend on the number of processes, but for
    rounding.

    Args:
        in_features, hidden, out_features: see `slide.SlideNetwork`.
        sampler: makes the sampler of a rank's outputs; see `ShardedOutputLinear`.
        feature_counts: ``(in_features,)``, how often each feature occurs, the same on all ranks;
            see `Shares`.
        label_counts: ``(out_features,)``, how often each label occurs.
        seed: of first weights and dropout, the same on all ranks.
        options: ``dropout``, ``precision``, ``init_scale``, ``output_scale``, ``input_dropout`` and
            ``hidden_samplers`` of `slide.SlideNetwork`, which draw uniformly, the first one None.

    Example:
        >>> import torch, slide
        >>> from slide.distributed import Group, ShardedNetwork
        >>> network = ShardedNetwork(100, [16], 1000, slide.FullSampler, Group.alone())
        >>> scores, ids = network.predict(torch.ones(1, 100), k=5)
        >>> ids.shape
        torch.Size([1, 5])
    """

    draws: torch.Tensor  # Number of passes that have drawn for dropout.

    def __init__(
        self,
        in_features: int,
        hidden: Sequence[int],
        out_features: int,
        sampler: SamplerFactory,
        group: Group,
        *,
        feature_counts: np.ndarray | None = None,
        label_counts: np.ndarray | None = None,
        seed: int = 0,
        **options: Any,
    ):
        if any(list(options.get("hidden_samplers", ()))[:1]):
            raise ValueError(
                "on several processes the first hidden layer computes all its neurons: its sampler "
                "must be None"
            )
        features = Shares("features", in_features, group.rank, group.size, feature_counts)
        labels = Shares("labels", out_features, group.rank, group.size, label_counts)
        # Made with one feature and one output; the layers with the rows of this rank follow.
        with own_draws(0):
            super().__init__(1, hidden, 1, FullSampler, **options)
        self.group, self.seed = group, seed
        self.first = ShardedInputLinear(  # type: ignore[assignment]
            features,
            hidden[0],
            group,
            init_scale=options.get("init_scale", 1.0),
            seed=self._key(_FIRST),
        )
        self.output = ShardedOutputLinear(  # type: ignore[assignment]
            hidden[-1],
            labels,
            group,
            sampler,
            init_scale=options.get("output_scale", 1.0),
            seed=self._key(_OUTPUT),
            precision=options.get("precision", "float32"),
        )
        for number, layer in enumerate(self.layers()[1:-1]):
            if getattr(layer.sampler, "has_index", False):
                raise ValueError(
                    "on several processes hidden neurons can be drawn uniformly, and not looked "
                    f"up: a rounding could let the processes choose otherwise; not {layer.sampler}"
                )
            size, width = layer.weight.shape
            key = self._key(_HIDDEN, number)
            layer.weight.data.copy_(uniform_rows(key, np.arange(size), width, width**-0.5))
        self.register_buffer("draws", torch.zeros((), dtype=torch.int64))

    def _apply(self, fn: Any, recurse: bool = True) -> "ShardedNetwork":
        draws = self.draws
        super()._apply(fn, recurse)
        self.draws = draws  # It stays on the host, which counts.
        return self

    def _key(self, *what: int) -> int:
        return int(random_key(self.seed, *what))

    def _generator(self) -> torch.Generator | None:
        """What dropout draws from: the draws of a pass follow from its number, on all ranks."""
        self.draws += 1
        return torch.Generator().manual_seed(self._key(_DROPOUT, int(self.draws)))

    def shared_rows(self) -> dict[str, Shares]:
        """The parameters that have the rows of this rank only, by name, with their rows.

        All other parameters are the same on all ranks.
        """
        output = {
            f"output.local.{name}": self.output.shares  # type: ignore[attr-defined]
            for name, _ in self.output.local.named_parameters()  # type: ignore[attr-defined]
        }
        return {"first.weight": self.first.shares, **output}  # type: ignore[dict-item]

    def own_rows(self) -> dict[str, np.ndarray]:
        shares: dict[str, Any] = {"first": self.first.shares, "output": self.output.shares}
        return {name: each.ids.astype(np.int64) for name, each in shares.items()}

    @staticmethod
    def single_name(name: str) -> str:
        return f"output.{name.removeprefix(_LOCAL)}" if name.startswith(_LOCAL) else name

    def gathered_weights(self) -> GatheredWeights:
        return GatheredWeights(_full_shapes(self), _full_blocks(self))

    @contextmanager
    def on_main_process(self, group: Group) -> Iterator[Any]:
        """See `slide.SlideNetwork.on_main_process`; the first process gets `MainProcessNetwork`."""
        if group.size == 1:
            yield self
        elif not group.is_main_process:
            _follow_main_process(self, group)
            yield None
        else:
            main = MainProcessNetwork(self, group)
            try:
                yield main
            except Exception as error:
                # Processes that compute do not listen: to tell them would be to wait for them.
                if not main.computing:
                    with suppress(Exception):  # The others may be gone.
                        _announce(group, "failed", said=str(error))
                raise
            _announce(group, "end")


class MainProcessNetwork:
    """The network of ``on_main_process``; its layer takes only what ``embed`` returned last."""

    def __init__(self, network: ShardedNetwork, group: Group):
        self._network, self._group = network, group
        self.computing = False  # Whether the others compute a call, also after it has failed here.
        self._hidden: Tensor | None = None
        self.out_features = network.output.out_features

    @property
    def output(self) -> "MainProcessNetwork":
        return self

    def embed(self, features: Any) -> Tensor:
        """The last hidden layer ``(B, H)`` of features ``(B, D)``; see `slide.SlideNetwork`."""
        rows = as_csr(features, self._network.first.in_features)
        with self._announced("embed", rows):
            self._hidden = self._network.embed(rows)
        return self._hidden

    def top_k(self, x: Tensor, k: int, search: str = "exact") -> tuple[Tensor, Tensor]:
        """See `slide.distributed.ShardedOutputLinear.top_k`."""
        with self._announced("top_k", x=x, k=k, search=search):
            return self._network.output.top_k(x, k, search)

    def scores_of(self, x: Tensor, ids: np.ndarray) -> np.ndarray:
        """See `slide.distributed.ShardedOutputLinear.scores_of`."""
        with self._announced("scores_of", [ids], x):
            return self._network.output.scores_of(x, ids)

    @contextmanager
    def _announced(
        self, call: str, arrays: Sequence[np.ndarray] = (), x: Tensor | None = None, **options: Any
    ) -> Iterator[None]:
        """Inside of it, the others compute a call, and this process must do its part."""
        if x is not None and x is not self._hidden:  # The other processes have only that one.
            raise ValueError("x must be what embed has returned last")
        _announce(self._group, call, arrays, **options)
        self.computing = True
        yield
        self.computing = False


def _announce(group: Group, call: str, arrays: Sequence[np.ndarray] = (), **options: Any) -> None:
    """Tell the other processes what they are to compute with this one."""
    tensors = [torch.tensor(array) for array in arrays]
    kinds = [[list(each.shape), str(each.dtype).partition(".")[2]] for each in tensors]
    group.broadcast([call, kinds, options])
    for tensor in tensors:
        group.broadcast_tensor(tensor)


def _follow_main_process(network: ShardedNetwork, group: Group) -> None:
    """Compute with the first process until it has no more calls."""
    hidden = torch.empty(0, dtype=torch.float32)
    while True:
        call, kinds, options = group.broadcast(None)
        empty = [torch.empty(shape, dtype=getattr(torch, kind)) for shape, kind in kinds]
        arrays = [group.broadcast_tensor(tensor).numpy() for tensor in empty]
        if call == "end":
            return
        if call == "failed":
            raise RuntimeError(f"the first process failed: {options['said']}")
        if call == "embed":
            hidden = network.embed(CSR(*arrays))
        elif call == "top_k":
            network.output.top_k(hidden, **options)
        else:
            network.output.scores_of(hidden, *arrays)


# Numbers of a block that is sent: 4 MB of float32, so that no process needs memory for all rows.
_BLOCK = 1 << 20


def _full_shapes(network: ShardedNetwork) -> dict[str, tuple[int, ...]]:
    """The shapes of all parameters with the rows of all processes, by ``single_name``."""
    shared, found = network.shared_rows(), {}
    for name, weight in network.named_parameters():
        rows = shared[name].rows if name in shared else len(weight)
        found[network.single_name(name)] = (rows, *weight.shape[1:])
    return found


def _full_blocks(network: ShardedNetwork) -> Iterator[Tensor]:
    """Rows of all parameters in the order of `_full_shapes`."""
    shared = network.shared_rows()
    for name, weight in network.named_parameters():
        if name in shared:
            yield from _rows_in_order(network, weight.detach(), shared[name])
        else:
            yield weight.detach().float()


def _rows_in_order(network: ShardedNetwork, own: Tensor, shares: Shares) -> Iterator[Tensor]:
    group, width = network.group, max(own[0].numel() if len(own) else 1, 1)
    step = min(max(_BLOCK // width, 1), shares.rows)
    # Two buffers for all blocks: threads of the exchange may keep a tensor longer than the call,
    # and with new tensors for each block the process would grow by tens of megabytes.
    block, part = (own.new_empty(step, *own.shape[1:], dtype=torch.float32) for _ in range(2))
    for begin in range(0, shares.rows, step):
        ids = np.arange(begin, min(begin + step, shares.rows))
        owners = shares.owners(ids)
        first, last = np.searchsorted(shares.ids, [ids[0], ids[-1] + 1])
        for rank in range(shares.size):
            positions = np.flatnonzero(owners == rank)
            rows = part[: len(positions)]
            if rank == group.rank:
                rows.copy_(own[first:last])
            block[on_device(positions, block.device)] = group.broadcast_tensor(rows, rank)
        yield block[: len(ids)]
