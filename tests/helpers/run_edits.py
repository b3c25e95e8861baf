"""Edits of run folders with correct hashes, and what comes of a run that is resumed there.

``python -m helpers.run_edits FOLDER COUNT SEED`` makes the edits, each of the folder as it is,
resumes the edited folders in this process, and prints a line of JSON for each.
"""

import json
import shutil
import sys
import warnings
from contextlib import redirect_stdout
from pathlib import Path

import torch
from omegaconf import OmegaConf

from helpers import job
from helpers.damage import rng_of
from helpers.edits import MEMORY, edit_array, edit_list
from helpers.limits import more_memory, wait_for_no_disk
from slide.training.checkpoint_files import CHECKPOINT, last_checkpoint
from slide.utils.tensor_folder import read_folder, read_tensors, write_folder

# A checkpoint is resumed for two more steps.
MORE = 2


def edit(rng, run):
    """Change one number of a configuration, or one number or array of the last checkpoint."""
    if rng.random() < 0.2:
        path = run / "config.yaml"
        config = OmegaConf.to_container(OmegaConf.load(path))
        what, how = edit_list(rng, config, set(config) - {"hydra", "allow_targets"})
        path.write_text(OmegaConf.to_yaml(config))
        return f"config.yaml:{what}", how
    last = last_checkpoint(run)
    content = read_folder(CHECKPOINT, last)
    files = {Path(name).stem: read_tensors(last, Path(name).stem) for name in content.pop("files")}
    if rng.random() < 0.3:
        what, how = edit_list(rng, content, ("run", "state"))
        what = f"checkpoint.json:{what}"
    else:
        what, how = edit_array(rng, {name: each for name, each in files.items() if each})
    write_folder(CHECKPOINT, last, content, files)
    return what, how


def weights(run):
    """All weights of the newest checkpoint."""
    state = job.checkpoint(run)["network"]
    return {name: each.clone() for name, each in state.items() if isinstance(each, torch.Tensor)}


def resumed(run, steps):
    """The weights after these steps, or the sentence of the error."""
    try:
        with redirect_stdout(sys.stderr):
            job.main(f"resume={run}", f"trainer.max_steps={steps}")
    except SystemExit as ended:
        return None, str(ended.code)
    found = weights(run)
    assert all(each.isfinite().all() for each in found.values() if each.is_floating_point())
    return found, None


def main(run, count, seed):
    run = Path(run)
    warnings.simplefilter("ignore")
    wait_for_no_disk()
    steps, copy = job.checkpoint(run)["step"] + MORE, run.with_name("edited")
    shutil.copytree(run, copy)
    expected, said = resumed(copy, steps)
    assert said is None, said
    for number in range(int(count)):
        shutil.rmtree(copy)
        shutil.copytree(run, copy)
        what, how = edit(rng_of(run.parent.name, seed, number), copy)
        # Before it is resumed: a process that dies has said of what.
        print(json.dumps([number, what, how]), file=sys.stderr, flush=True)
        with more_memory(MEMORY):
            found, said = resumed(copy, steps)
        same = found is not None and all(
            torch.equal(found[n], each) for n, each in expected.items()
        )
        line = json.dumps([what, how, "same" if same else said or "other"])
        print(line, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
