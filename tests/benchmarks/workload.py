"""What the speed benchmarks time: the main job at Amazon-670K's shape, and its peers."""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from plain_torch import SampledSoftmax, bag, cross_entropy, positives

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from helpers import job  # noqa: E402

from slide.config import build_trainer  # noqa: E402
from slide.training import Trainer  # noqa: E402

# A network for measuring the speed of steps; it answers much less precisely than the default one.
SMALL_NETWORK = [
    *(
        "ranker=none",
        "transform.l2_norm=false",
        "sampler.active=4096",
        "sampler.candidate_share=0.5",
    ),
    *("network.hidden=[128]", "network.dropout=0.0", "network.precision=float32"),
    *("network.init_scale=1.0", "network.output_scale=1.0", "optimizer.lr=0.001"),
    *("optimizer.input_rate=1.0", "trainer.batch_size=256", "trainer.epochs=5"),
    "trainer.recall_every=500",
]
JOB = ["dataset=amazon670k_like", "sampler=lsh", *SMALL_NETWORK]
EPOCH = 490_449
BATCH = 256
# The labels of so many rows are more than 4,096, and would leave nothing to look up.
LARGE = ["trainer.batch_size=1024", "sampler.active=8192"]
# name: overrides of the configuration of `JOB`
CASES = {
    "lsh, shared": [],
    "lsh, shared, batch 512": ["trainer.batch_size=512"],
    "lsh, shared, batch 1024, 8192 active": LARGE,
    "lsh, shared, bfloat16": ["network.precision=bfloat16"],
    "lsh, shared, batch 512, bfloat16": ["trainer.batch_size=512", "network.precision=bfloat16"],
    "lsh, shared, batch 1024, 8192 active, bfloat16": [*LARGE, "network.precision=bfloat16"],
    "labels alone, batch 1024, bfloat16": [
        *("trainer.batch_size=1024", "network.precision=bfloat16")
    ],
    "uniform, shared": ["sampler=uniform"],
    "uniform, shared, batch 512, bfloat16": [
        *("sampler=uniform", "trainer.batch_size=512", "network.precision=bfloat16")
    ],
    "lsh, per sample": [
        *("sampler.mode=per_sample", "sampler.active=1000", "trainer.batch_size=128")
    ],
}
# The timed steps need no more rows than these, and a set of this size is made in seconds.
ROWS = ["dataset.train_samples=100000", "dataset.test_samples=1000"]
Step = Callable[[int], None]


def make_trainer(overrides: list[str]) -> Trainer:
    """The main job, put together as train.py does, with no rebuild but the first."""
    folder = tempfile.mkdtemp()
    quiet = ["schedule=fixed", "schedule.every=0", f"run_dir={folder}/run"]
    return build_trainer(job.compose(*JOB, *ROWS, *quiet, *overrides))


def our_step(trainer: Trainer) -> Step:
    """Everything that a step needs: batch, input layer, selection, products, gradients, updates."""

    def step(i: int) -> None:
        epoch, index = divmod(i, len(trainer.batches))
        loss, _, _ = trainer.loop.forward(trainer.batches.batch(epoch, index))
        trainer.loop.update(loss)

    return step


def dense_step(trainer: Trainer) -> Step:
    """The same network in plain PyTorch: autograd, and fused Adam over all parameters."""
    data, hidden = trainer.data, trainer.network.output.in_features
    first = torch.nn.EmbeddingBag(data.num_features, hidden, mode="sum", include_last_offset=True)
    output = torch.nn.Linear(hidden, data.num_labels)
    optimizer = torch.optim.Adam([*first.parameters(), *output.parameters()], fused=True)

    def step(i: int) -> None:
        batch = trainer.batches.batch(0, i)
        optimizer.zero_grad()
        scores = output(torch.relu(first(**bag(batch.features))))
        cross_entropy(scores, *positives(batch)).backward()
        optimizer.step()

    return step


def sparse_adam_step(trainer: Trainer) -> Step:
    """Sampled softmax of PyTorch's own sparse parts: sparse embeddings and ``SparseAdam``."""
    data, hidden = trainer.data, trainer.network.output.in_features
    active = trainer.network.output.sampler.active  # type: ignore[attr-defined]
    network = SampledSoftmax(data.num_features, data.num_labels, hidden, active)
    optimizer = torch.optim.SparseAdam(network.parameters())

    def step(i: int) -> None:
        optimizer.zero_grad()
        network.loss(trainer.batches.batch(0, i)).backward()
        optimizer.step()

    return step


def tensorflow_step(trainer: Trainer) -> Step:
    """TensorFlow's ``sampled_softmax_loss``, one label a row; its Adam moves all rows."""
    import tensorflow as tf

    data, hidden = trainer.data, trainer.network.output.in_features
    active = trainer.network.output.sampler.active  # type: ignore[attr-defined]
    draw = tf.random_normal_initializer(stddev=hidden**-0.5)
    table = tf.Variable(draw((data.num_features, hidden)))
    weight = tf.Variable(draw((data.num_labels, hidden)))
    bias = tf.Variable(tf.zeros(data.num_labels))
    optimizer = tf.compat.v1.train.AdamOptimizer(1e-3)

    @tf.function(reduce_retracing=True)
    def train_on(rows, indices, values, labels):
        with tf.GradientTape() as tape:
            ids = tf.SparseTensor(rows, indices, (BATCH, data.num_features))
            weights = tf.SparseTensor(rows, values, (BATCH, data.num_features))
            h = tf.nn.relu(tf.nn.embedding_lookup_sparse(table, ids, weights, combiner="sum"))
            losses = tf.nn.sampled_softmax_loss(
                weight, bias, labels[:, None], h, active, data.num_labels
            )
            loss = tf.reduce_mean(losses)
        variables = [table, weight, bias]
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    def step(i: int) -> None:
        batch = trainer.batches.batch(0, i)
        counts = np.diff(batch.features.indptr)
        rows = np.repeat(np.arange(len(counts)), counts)
        places = np.arange(len(rows)) - np.repeat(batch.features.indptr[:-1], counts)
        first = batch.labels.indices[batch.labels.indptr[:-1]].astype(np.int64)
        pairs = np.stack([rows, places], 1)
        train_on(pairs, batch.features.indices.astype(np.int64), batch.features.values, first)

    return step


PEERS = {
    "dense PyTorch, Adam(fused)": dense_step,
    "sampled softmax, SparseAdam": sparse_adam_step,
    "sampled softmax, TensorFlow (Adam on all rows)": tensorflow_step,
}
