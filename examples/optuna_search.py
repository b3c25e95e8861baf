"""Settings by Optuna: each trial is a run, judged by training rows that are set aside.

pip install optuna
python examples/optuna_search.py --trials 30 dataset=eurlex4k trainer.max_minutes=5
"""

import argparse
from collections.abc import Sequence

import optuna

from slide.config import build_trainer, read_config


def score(trial: optuna.Trial, words: Sequence[str]) -> float:
    chosen = [
        f"optimizer.lr={trial.suggest_float('optimizer.lr', 2e-4, 5e-3, log=True):.3g}",
        f"network.hidden=[{trial.suggest_categorical('hidden', [128, 256, 512])}]",
        f"network.dropout={trial.suggest_float('network.dropout', 0.0, 0.5):.2f}",
    ]
    overrides = ["dataset.holdout=0.1", "ranker=none", *words, *chosen]
    return build_trainer(read_config(overrides), overrides, chosen).fit()["p_at_5"]


def main(arguments: Sequence[str] | None = None) -> optuna.Study:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("words", nargs="*", help="group=choice and key=value, as of train.py")
    options = parser.parse_args(arguments)
    study = optuna.create_study(direction="maximize")
    study.optimize(lambda trial: score(trial, options.words), options.trials)
    print(f"P@5 {study.best_value:.4f}:", *(f"{k}={v}" for k, v in study.best_params.items()))
    return study


if __name__ == "__main__":
    main()
