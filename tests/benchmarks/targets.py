"""What custom sparse layers were asked for: the targets that `seeds.py` compares with figures."""

from collections.abc import Callable
from typing import NamedTuple

Rows = list[dict]


class Target(NamedTuple):
    """What a figure must be.

    Attributes:
        text: what it is about.
        figure: of the rows that a benchmark found; the worst one where there are several.
        at_least, at_most: its bounds.
    """

    text: str
    figure: Callable[[Rows], float]
    at_least: float = float("-inf")
    at_most: float = float("inf")

    def check(self, rows: Rows) -> dict:
        """A line of the table of targets."""
        figure = self.figure(rows)
        bounds = f"at least {self.at_least:g}" if self.at_least > 0 else f"at most {self.at_most:g}"
        met = self.at_least <= figure <= self.at_most
        return {
            "measured": self.text,
            "target": bounds,
            "found": f"{figure:.3g}",
            "": "met" if met else "missed",
        }


class Seed(NamedTuple):
    """A benchmark.

    Attributes:
        asked: for what.
        data: the folder below the root that it reads; None: it makes its data up.
        quick: arguments of its `rows` for small sizes.
        targets: of the rows.
    """

    asked: str
    data: str | None
    quick: dict
    targets: list[Target]


def of(rows: Rows, case: str, key: str, **equal: object) -> list[float]:
    """The figures ``key`` of cases that begin with ``case`` and have the values ``equal``."""
    found = [
        row[key]
        for row in rows
        if row["case"].startswith(case) and all(row[name] == value for name, value in equal.items())
    ]
    if not found:
        raise ValueError(f"no row of {case} with {equal}")
    return found


BACKWARD = "active_linear", "backward_to_forward"


def only(rows: Rows, part: str) -> Rows:
    """The cases that have ``part`` in their name."""
    return [row for row in rows if part in row["case"]]


def without(rows: Rows, part: str) -> Rows:
    """The other ones."""
    return [row for row in rows if part not in row["case"]]


def growth(rows: Rows, case: str) -> float:
    """Of the backward pass from the smallest layer to the largest, for single samples."""
    sizes = [row["outputs"] for row in rows]
    first, last = (
        of(rows, case, "backward_ms", outputs=n, batch=1) for n in (min(sizes), max(sizes))
    )
    return last[0] / first[0]


def against(rows: Rows, key: str, best: Callable) -> float:
    """How many times as long PyTorch's sparse products take as ours, by the best or worst peer."""
    ratios = [
        best(of(rows, "torch", key, vectors=count)) / of(rows, "ours", key, vectors=count)[0]
        for count in {row["vectors"] for row in rows}
    ]
    return min(ratios)


def behind(rows: Rows) -> float:
    """By how many points a sampled Mixer is behind its twin."""
    (dense,) = of(rows, "mixer", "accuracy %", neurons="dense")
    others = [row["accuracy %"] for row in rows if row["case"] == "mixer"]
    return dense - min(others)


def sampled_mnist(rows: Rows) -> float:
    return min(
        row["accuracy %"] for row in rows if row["case"] == "mnist" and row["neurons"] != "dense"
    )


SEEDS = {
    "linear": Seed(
        "backward through a sampled slice that does not grow with the layer",
        None,
        {"sizes": (2**8, 2**12)},
        [
            Target(
                "active_linear: backward / forward, worst size and batch",
                lambda rows: max(of(without(rows, "sparse_grad"), *BACKWARD)),
                at_most=1.5,
            ),
            Target(
                "active_linear, sparse_grad: the same",
                lambda rows: max(of(only(rows, "sparse_grad"), *BACKWARD)),
                at_most=1.5,
            ),
            Target(
                "SampledLinear: backward / forward, worst size and batch",
                lambda rows: max(of(rows, "SampledLinear", "backward_to_forward")),
                at_most=1.5,
            ),
            Target(
                "active_linear: backward at the largest size / at the smallest",
                lambda rows: growth(rows, "active_linear, shared"),
                at_most=2,
            ),
            Target(
                "autograd through weight[ids]: the same",
                lambda rows: growth(rows, "weight[ids]"),
                at_least=10,
            ),
        ],
    ),
    "optimizer": Seed(
        "stock optimizers, equal to dense training when all neurons are active",
        None,
        {},
        [
            Target(
                "largest difference of a parameter, relative",
                lambda rows: max(row["difference"] for row in rows),
                at_most=1e-5,
            )
        ],
    ),
    "csr": Seed(
        "y = A x with a large sparse A, gradient for x",
        None,
        {"scale": 0.02},
        [
            Target(
                "backward / forward, worst number of vectors",
                lambda rows: max(of(rows, "ours", "backward_to_forward")[:2]),
                at_most=1.5,
            ),
            Target(
                "forward of torch.sparse.mm, the fastest kind / ours",
                lambda rows: against(rows, "forward_ms", min),
                at_least=1,
            ),
            Target(
                "backward of torch.sparse.mm, the slowest kind / ours",
                lambda rows: against(rows, "backward_ms", max),
                at_least=10,
            ),
        ],
    ),
    "hardest": Seed(
        "backward for the hardest quarter of a batch, from one forward pass",
        None,
        {"repeats": 5},
        [
            Target(
                "backward of the hard part / of the whole, worst kind of set",
                lambda rows: max(of(without(rows, "loss of PyTorch"), "ours", "backward_ratio")),
                at_most=0.35,
            ),
            Target(
                "the same with a loss of PyTorch",
                lambda rows: max(of(only(rows, "loss of PyTorch"), "ours", "backward_ratio")),
                at_most=0.35,
            ),
        ],
    ),
    "conv": Seed(
        "convolution on some channels",
        None,
        {"steps": 5},
        [
            Target(
                f"backward / forward at stride {stride}, worst order of memory",
                lambda rows, stride=stride: max(
                    of(rows, "active_conv2d", "backward_to_forward", stride=stride)
                ),
                at_most=2.5,
            )
            for stride in (1, 2)
        ],
    ),
    "vision": Seed(
        "SLIDE for vision: MLP on MNIST, MLP-Mixer",
        "mnist",
        {"quick": True},
        [
            Target("MNIST: accuracy with a fifth of the neurons", sampled_mnist, at_least=98),
            Target("Mixer: points behind its dense twin", behind, at_most=1),
        ],
    ),
    "word2vec": Seed(
        "a large vocabulary",
        "text",
        {"quick": True},
        [
            Target(
                "dense step / sampled step",
                lambda rows: max(row["times faster"] for row in rows),
                at_least=20,
            )
        ],
    ),
}
