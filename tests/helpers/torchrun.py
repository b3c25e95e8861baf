"""Runs of ``train.py`` on several processes, as ``torchrun`` starts them.

One process imports everything and makes a short run, and the ranks are its children: imports and
kernels take seconds. It is a child itself, because kernels of forked processes are serial.
"""

import json

from helpers.programs import output_of

# A run of which all outputs are computed, so that it does not depend on the number of processes.
SMALL = (
    *("dataset.train_samples=300", "dataset.test_samples=60", "dataset.num_labels=60"),
    *("dataset.num_features=90", "dataset.nonzeros=8", "network.hidden=[16]", "sampler=full"),
    *("network.precision=float32", "network.dropout=0", "lr_schedule=constant", "ranker=none"),
    *("trainer.batch_size=32", "trainer.epochs=2", "trainer.log_every=1", "runtime.threads=1"),
    "report=false",
)
START = """
import contextlib, json, os, resource, signal, socket, sys, time, traceback
import torch.distributed, torch.utils.tensorboard
from helpers import limits
from slide.config import command

limits.wait_for_no_disk()
limits.grow_few_trees()

read_config, known = command.read_config, {}

def read_once(words):
    '''Composing a configuration takes half of the time of a small run: ranks inherit it.'''
    if tuple(words) not in known:
        known[tuple(words)] = read_config(words)
    return known[tuple(words)].copy()

command.read_config = read_once

class Rank:
    '''A child process that runs the command as torchrun starts it.'''

    def __init__(self, words, rank, size, port, said, **environment):
        self.said = said
        self.process = os.fork()
        if not self.process:
            given = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
            given |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **environment}
            if size == 1:
                given = environment
            os.environ.update({name: str(value) for name, value in given.items()})
            become(words, said)

    def kill(self, number=signal.SIGKILL):
        os.kill(self.process, number)

    def wait(self):
        status = os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])
        with open(self.said) as file:
            return {"status": status, "said": file.read()}

def become(words, said):
    status = 1
    signal.alarm(120)
    try:
        if "LIMIT_MB" in os.environ:  # Of memory beside what is there: the size of a machine.
            with open("/proc/self/statm") as file:
                there = int(file.read().split()[0]) * resource.getpagesize()
            most = there + int(os.environ["LIMIT_MB"]) * 2**20
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
        with open(said, "w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        sys.argv = ["train.py", *words]
        command.train()
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)

def free_port():
    with socket.socket() as each:
        each.bind(("127.0.0.1", 0))
        return each.getsockname()[1]

def start(words, size, **environment):
    port = free_port()
    with contextlib.suppress(ValueError):  # The ranks say so themselves.
        read_once(command.asked_for(words if isinstance(words[0], str) else words[0]))
    return [
        Rank(words[r] if isinstance(words[0], list) else words, r, size, port, f"{folder}/said-{r}",
             **environment)
        for r in range(size)
    ]

def run(words, size, **environment):
    return [rank.wait() for rank in start(words, size, **environment)]

folder, small = sys.argv[1], sys.argv[2:]
mother = os.fork()
if mother:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(mother, 0)[1]))
sys.argv = ["train.py", *small, f"run_dir={folder}/warm", "trainer.max_steps=1"]
command.train()
"""
END = """
json.dump(found, open(f"{folder}/found.json", "w"))
"""


def torchruns(code, folder, seconds=170):
    """What some runs have left.

    Args:
        code: Python code that sets ``found``, something for JSON. It may call ``run(words, size)``,
            which returns the exit status and the output of each rank, and ``start``, for ranks that
            can be killed. It knows ``folder`` and ``small``, the words of a small run.
        folder: an empty folder.
        seconds: time after which the test fails.
    """
    words = ["-c", START + code + END, folder, *SMALL, f"dataset.cache={folder}/cache"]
    output_of(*words, cwd=folder, timeout=seconds, GLOO_SOCKET_IFNAME="lo")
    return json.loads((folder / "found.json").read_text())
