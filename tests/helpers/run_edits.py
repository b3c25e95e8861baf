"""Edits of run folders with correct hashes, and what comes of a run that is resumed there.

``python -m helpers.run_edits FOLDER COUNT SEED KINDS...`` makes small runs of some `KINDS`, edits
them, each time as they were, goes on in this process, and prints a line of JSON for each edit.
"""

import json
import shutil
import sys
import warnings
from contextlib import redirect_stderr, redirect_stdout
from copy import deepcopy
from functools import partial
from io import StringIO
from itertools import islice
from pathlib import Path

import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from helpers import job
from helpers.damage import rng_of
from helpers.edits import MEMORY, EditedCopy, edit_array, edit_list
from helpers.limits import more_memory, wait_for_no_disk
from slide import runtime
from slide.config import build_trainer, read_config, recipe
from slide.config.compose import asked_for, resumed, user_errors
from slide.training import DivergenceError, Trainer
from slide.training.checkpoint import CHECKPOINT, find_checkpoints, network_state
from slide.training.stopping import BEST, BEST_NETWORK
from slide.utils.checks import error_message
from slide.utils.tensor_folder import write_folder

KINDS = {
    "lsh": ["sampler=lsh"],
    "published": ["sampler=slide2020", "sampler.mode=per_sample"],
    "auto": ["sampler=uniform", "trainer.epochs=auto", "trainer.max_epochs=3"],
    "sketch": ["sampler=sketch", "trainer.patience=1"],
    "recent": ["sampler=recent", "network.precision=bfloat16"],
}
# A checkpoint is resumed for two more steps.
STEPS, MORE = 6, 2


def edit_checkpoint(rng, copy):
    """Change one number or array of a checkpoint or of best weights, and write it to its folder."""
    content, files = copy.parts()
    if rng.random() < 0.3:
        what, how = edit_list(rng, content, ("run", "state", "score"))
        what = f"{copy.kind.list_file}:{what}"
    else:
        what, how = edit_array(rng, {name: each for name, each in files.items() if each})
    copy.write(what, content, files)
    return what, how


def edit_config(rng, run):
    """Change one value of a configuration."""
    path = run / "config.yaml"
    config = OmegaConf.to_container(OmegaConf.load(path))
    what, how = edit_list(rng, config, set(config) - {"hydra", "allow_targets"})
    path.write_text(OmegaConf.to_yaml(config))
    return f"config.yaml:{what}", how


class Resuming:
    """Resumes a run again and again; what does not depend on the checkpoint is made once."""

    def __init__(self, run):
        self.run, self.words = run, [f"resume={run}", f"trainer.max_steps={STEPS + MORE}"]
        self.composed = read_config(asked_for(self.words))

    def config(self):
        return resumed(self.composed, self.words)

    def all(self):
        """The weights after some steps of a run whose configuration was edited."""
        with user_errors():
            trainer = build_trainer(self.config(), self.words)
        return self.steps(trainer)

    def prepare(self):
        config = self.config()
        data = recipe.open_dataset(config)
        recipe.fill_in(config, len(data.train), data.num_labels)
        sizes = data.num_features, data.num_labels

        network = recipe.build_network(config, *sizes)
        parts = network, recipe.build_optimizer(config, network), recipe.build_loss(config)
        options = instantiate(config.trainer, holdout=config.dataset.holdout)
        schedule = instantiate(config.lr_schedule)

        def checkpoint(best=False):
            """The weights after some steps of a run whose checkpoint was edited, or the best."""
            runtime.set_deterministic(True, config.seed)
            network, optimizer, loss = deepcopy(parts)
            made = network, optimizer, loss, data, options, self.run, schedule
            with user_errors():
                trainer = Trainer(*made, resume=True)
                if best:
                    trainer.early_stopping.finish(network, trainer.counters, trainer.monitor)
                return self.steps(trainer, 0 if best else MORE)

        return checkpoint

    @staticmethod
    def steps(trainer, count=MORE):
        try:
            for _ in islice(trainer.loop.steps(trainer._batches()), count):
                pass
        except DivergenceError as error:
            sys.exit(f"error: {error_message(error)}")
        finally:
            trainer.monitor.close()
            trainer.checkpoint.close()
        state = network_state(trainer.network)
        return {name: each for name, each in state.items() if isinstance(each, torch.Tensor)}


def outcome(resume):
    """The weights, or the sentence of the error."""
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()), more_memory(MEMORY):
            found = resume()
    except SystemExit as ended:
        return None, str(ended.code)
    for name, each in found.items():
        assert not each.is_floating_point() or each.isfinite().all(), name
    return {name: each.clone() for name, each in found.items()}, None


def tell(what, how, found, said, expected):
    same = found is not None and all(torch.equal(found[n], each) for n, each in expected.items())
    print(json.dumps([what, how, "same" if same else said or "other"]), flush=True)


def edits_of(kind, folder, count, seed):
    more = [f"trainer.max_steps={STEPS}", "runtime.deterministic=true", "ranker=none"]
    with redirect_stdout(sys.stderr):
        job.main(*job.tiny(folder, *more, *KINDS[kind]))
    run = folder / "run"
    (last,) = find_checkpoints(run)
    copy = EditedCopy(CHECKPOINT, shutil.move(last, folder / "checkpoint"), last)
    resuming = Resuming(run)
    checkpoint = resuming.prepare()
    expected, said = outcome(checkpoint)
    assert said is None, said
    if resuming.config().trainer.patience:
        edits_of_best(run, kind, copy, checkpoint, count // 4, seed)
    for number in range(count):
        rng = rng_of(kind, seed, number)
        if number % 32:  # A configuration takes ten times as long.
            what, how = edit_checkpoint(rng, copy)
            resume = checkpoint
        else:
            whole = (run / "config.yaml").read_text()
            copy.write("", *copy.parts())
            what, how = edit_config(rng, run)
            resume = resuming.all
        # Before it is resumed: a process that dies has said of what.
        print(json.dumps([number, what, how]), file=sys.stderr, flush=True)
        tell(what, how, *outcome(resume), expected)
        if resume is not checkpoint:
            (run / "config.yaml").write_text(whole)


def edits_of_best(run, kind, checkpoint, resume, count, seed):
    """Edits of weights that were the best a step before the checkpoint."""
    content, files = checkpoint.parts()
    content = {"score": 1.0, "state": {"network": content["state"]["network"]}}
    files = {name: files[name] for name in ("network", "samplers")}
    whole, best = run.parent / BEST, run / BEST / f"1-step-{STEPS - 1}"
    write_folder(BEST_NETWORK, whole, content, files)
    shutil.copytree(whole, best)
    resume = partial(resume, best=True)
    expected, said = outcome(resume)
    assert said is None, said
    for number in range(count):
        rng = rng_of(f"best {kind}", seed, number)
        shutil.rmtree(run / BEST)
        what, how = edit_checkpoint(rng, EditedCopy(BEST_NETWORK, whole, best))
        print(json.dumps([number, what, how]), file=sys.stderr, flush=True)
        tell(what, how, *outcome(resume), expected)


def main(folder, count, seed, *kinds):
    warnings.simplefilter("ignore")
    for kind in kinds:
        home = Path(folder) / kind
        home.mkdir()
        edits_of(kind, home, int(count), seed)


if __name__ == "__main__":
    wait_for_no_disk()
    main(*sys.argv[1:])
