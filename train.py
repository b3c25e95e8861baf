"""Trains a network from a configuration: ``python train.py``; ``--help`` explains the keys."""

from slide.config.command import train

if __name__ == "__main__":
    train()
