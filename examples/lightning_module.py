"""A sampled output layer in a ``LightningModule``, with gradients clipped by the trainer.

    python examples/lightning_module.py    (needs lightning)

One `RowSparseAdam` takes all parameters, dense and sampled, so nothing else is special: gradient
clipping by norm sees the rows of the layer, and checkpoints have the state of its sampler.
"""

import argparse
from collections.abc import Sequence

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from slide import ActiveSampler, RowSparseAdam, SampledLinear


class Classifier(lightning.LightningModule):
    """Inputs ``(B, inputs)`` to one of many classes ``(B,)``."""

    def __init__(self, inputs: int = 16, classes: int = 20_000):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(inputs, 64), nn.ReLU())
        self.output = SampledLinear(64, classes, ActiveSampler(64, classes, active=512))

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        x, classes = batch
        loss, _ = self.output.loss(self.encoder(x), classes, "softmax")
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: list[Tensor], _: int) -> None:
        x, classes = batch
        _, ids = self.output.top_k(self.encoder(x), 1)
        self.log("accuracy", (ids[:, 0] == classes).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return RowSparseAdam(self.parameters(), lr=1e-2)


def main(words: Sequence[str] | None = None) -> float:
    """Train on made up samples; the accuracy on them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args(words)
    torch.manual_seed(0)
    centres, classes = torch.randn(20_000, 16), torch.randint(500, (4_000,))
    data = TensorDataset(centres[classes] + 0.1 * torch.randn(4_000, 16), classes)
    trainer = lightning.Trainer(
        max_epochs=options.epochs,
        accelerator="cpu",
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
    )
    trainer.fit(Classifier(), DataLoader(data, 64, shuffle=True), DataLoader(data, 256))
    return float(trainer.callback_metrics["accuracy"])


if __name__ == "__main__":
    print(f"accuracy: {main():.1%}")
