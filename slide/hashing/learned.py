"""SimHash with directions that are learnt from recent inputs and some of the rows."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from slide import checks
from slide.backend import on_device, on_host
from slide.hashing.simhash import SimHash

# Rows whose inner products with an input are the largest of the sample: what it should find.
WANTED = 10
# Inputs and random rows in a step of learning.
_INPUTS, _OTHERS = 128, 256
# Products are computed for so many inputs at a time.
_BLOCK = 256


class LearnedSimHash(SimHash):
    """A hash family: signs of projections on directions that are learnt.

    It begins as `SimHash`. `slide.LSHProposer` calls `learn` at each rebuild, with recent inputs
    and a sample of the rows, and the directions move on from where they are. Pairs of an input and
    a row give them a gradient, through tanh in place of the sign: an input should share buckets
    with the rows of the sample that have the largest inner products with it, and not with random
    rows (Chen et al. 2021, "MONGOOSE: a learnable LSH framework for efficient neural network
    training", section 3.2; `collision_loss` is another loss). Rows that are among the best of no
    input then crowd into few buckets, and those that often are share theirs with few.

    Inputs in CSR form teach nothing.

    Args:
        in_features: D, length of the vectors.
        hashes_per_table: K, number of signs in a code; see `SimHash`.
        num_tables: L, number of codes of a vector.
        seed: seed of the first directions.
        num_vectors: number of vectors that the tables will hold; used only to choose K.
        steps: number of gradient steps of each `learn`.
        lr: length of a step; the entries of the directions have a mean square of 1 at first.

    Raises:
        ValueError: for a number out of range.

    Example:
        >>> import slide, torch
        >>> family = slide.LearnedSimHash(in_features=8, hashes_per_table=4, num_tables=2)
        >>> before = family.directions.copy()
        >>> family.learn(torch.randn(100, 8), torch.randn(20, 8), seed=0)
        >>> bool((family.directions == before).all())
        False
        >>> family.codes(torch.randn(5, 8)).shape
        (2, 5)
    """

    def __init__(
        self,
        in_features: int,
        hashes_per_table: int | None = None,
        num_tables: int = 16,
        seed: int = 0,
        num_vectors: int = 2**16,
        *,
        steps: int = 100,
        lr: float = 0.05,
    ):
        super().__init__(in_features, hashes_per_table, num_tables, seed, num_vectors)
        checks.whole("steps", steps, 0)
        checks.positive("lr", lr)
        self.steps, self.lr = steps, lr

    @torch.inference_mode(False)
    def learn(self, rows: Tensor, inputs: Tensor, seed: int) -> None:
        """Move the directions, so that inputs share buckets with their best rows.

        They stay where they are if there are fewer than two rows or inputs, or one is not finite.

        Args:
            rows: ``(n, D)`` floats, a sample of what the tables will hold.
            inputs: ``(m, D)`` floats on the same device.
            seed: seed of the draws of pairs; equal arguments give equal directions.
        """
        if not self.steps or min(len(rows), len(inputs)) < 2:  # One vector has no spread.
            return
        rows, inputs = rows.detach().float(), inputs.detach().float()
        wanted = best_rows(inputs, rows)
        rows, inputs = (F.normalize(each) for each in (rows, inputs))
        generator = torch.Generator().manual_seed(seed % 2**63)

        def draw(bound: int, count: int) -> Tensor:
            return torch.randint(bound, (count,), generator=generator).to(rows.device)

        start = on_device(self.directions, rows.device).float()
        directions = start / start.square().mean(0).sqrt().clamp(min=1e-12)
        # So that most projections lie where tanh is neither flat nor straight.
        spreads = [(each @ directions).std(0).mean() for each in (inputs, rows)]
        scales = [1 / each.clamp(min=1e-12) for each in spreads]
        directions.requires_grad_()
        optimizer = torch.optim.Adam([directions], lr=self.lr)
        with torch.enable_grad():
            for _ in range(self.steps):
                some = draw(len(inputs), _INPUTS)
                good = wanted[some, draw(wanted.shape[1], _INPUTS)]
                kinds = inputs[some], rows[good], rows[draw(len(rows), _OTHERS)]
                signs = [
                    torch.tanh(scale * (each @ directions)).view(len(each), self.num_tables, -1)
                    for each, scale in zip(kinds, (*scales, scales[1]), strict=True)
                ]
                optimizer.zero_grad()
                collision_loss(*signs).backward()
                optimizer.step()
        learnt = on_host(directions)
        if np.isfinite(learnt).all():  # Else no later call would find a way back.
            self._set(learnt)

    def _set(self, directions: np.ndarray) -> None:
        self.directions, self._placed = directions, None

    def state_dict(self) -> dict[str, Any]:
        """The directions: no seed gives them again."""
        return {"directions": self.directions.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned.

        Raises:
            ValueError: for directions of another shape.
        """
        found, own = state["directions"].shape, self.directions.shape
        if found != own:
            raise ValueError(f"directions of shape {found} do not fit a family of shape {own}")
        self._set(state["directions"].copy())


def best_rows(inputs: Tensor, rows: Tensor) -> Tensor:
    """Numbers ``(m, 10)`` of the rows of a sample with the largest products of each input."""
    most = min(WANTED, len(rows))
    return torch.cat([(part @ rows.T).topk(most).indices for part in inputs.split(_BLOCK)])


def collision_loss(inputs: Tensor, good: Tensor, others: Tensor) -> Tensor:
    """How much rather an input shares a bucket with random rows than with its good row; a scalar.

    Let s be the sum of the products of relaxed signs within a table. The sum of exp(s) over the
    tables stands for the number of buckets that two vectors share. It is to be larger for the good
    row than for all random rows together (van den Oord et al. 2018, "Representation learning with
    contrastive predictive coding", section 2.3).

    Args:
        inputs: ``(B, L, K)`` relaxed signs, in (-1, 1).
        good: ``(B, L, K)``, of one wanted row of each input.
        others: ``(n, L, K)``, of random rows.

    Example:
        >>> import torch
        >>> from slide.hashing.learned import collision_loss
        >>> signs = torch.tensor([[[1.0, -1.0]], [[-1.0, 1.0]]])
        >>> found = collision_loss(signs, signs, torch.ones(3, 1, 2))
        >>> other = collision_loss(signs, -signs, torch.ones(3, 1, 2))
        >>> bool(found < other)
        True
    """
    wanted = (inputs * good).sum(2).logsumexp(1)
    by_table = inputs.transpose(0, 1) @ others.permute(1, 2, 0)  # (L, B, n)
    random = by_table.permute(1, 0, 2).flatten(1).logsumexp(1)
    return (torch.logaddexp(wanted, random) - wanted).mean()
