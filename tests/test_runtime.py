"""Threads, memory, random keys, and views."""

import ast
import functools
import os
import runpy
import threading
from types import SimpleNamespace

import numba
import numpy as np
import pytest
import torch
from helpers.programs import output_of, run_program

import slide
from slide import backend, runtime
from slide.backend import array_view
from slide.utils import resources
from slide.utils.random_keys import random_key


class TestThreads:
    def test_sets_both_pools(self, threads):
        threads(1)
        assert numba.get_num_threads() == torch.get_num_threads() == runtime.num_threads() == 1
        threads(0)
        most = numba.config.NUMBA_NUM_THREADS
        everything = min(most, resources.core_limit() or most)
        assert numba.get_num_threads() == torch.get_num_threads() == everything

    @pytest.mark.parametrize("cores", [1, 100_000, None])
    def test_a_container_with_the_time_of_some_cores(self, threads, monkeypatch, cores):
        monkeypatch.setattr(runtime, "core_limit", lambda: cores)
        everything = numba.config.NUMBA_NUM_THREADS
        threads(0)
        assert runtime.num_threads() == torch.get_num_threads() == min(cores or 99, everything)
        threads(everything)  # Asked for.
        assert runtime.num_threads() == everything

    def test_other_python_threads_keep_to_the_cores_too(self, monkeypatch):
        monkeypatch.setattr(runtime, "core_limit", lambda: 1)
        found = []
        worker = threading.Thread(target=lambda: found.append(runtime.num_threads()))
        worker.start()
        worker.join()
        assert found == [1]

    @pytest.mark.parametrize("number", [-1, 100_000])
    def test_out_of_range(self, number):
        with pytest.raises(ValueError, match="threads must be between 0"):
            runtime.set_threads(number)


HOST = """
import os, signal, sys, numpy, torch
torch.set_num_threads(1)
torch.manual_seed(3)
numpy.random.seed(3)
def state():
    signals = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    seeds = torch.random.get_rng_state().tolist(), numpy.random.get_state()[1].tolist()
    return dict(os.environ), signals, seeds, torch.get_num_threads()
before = state()
import slide
layer = slide.SampledLinear(4, 100, slide.FullSampler(4, 100))
layer.loss(torch.ones(2, 4), slide.Pattern.from_lists([[3], [5]]), slide.ActiveLoss("bce"))
after = state()
assert after[1] == before[1], "signals"
assert after[3] == before[3], "threads of torch"
print(sorted(name for name, _ in set(after[0].items()) - set(before[0].items())))
optimizer = slide.RowSparseAdam(layer.parameters())
optimizer.zero_grad()
optimizer.load_state_dict(optimizer.state_dict())
print(sorted({HEAVY} & set(sys.modules)))
print([getattr(slide, name).__name__ for name in slide._PACKAGES])
"""
HEAVY = {
    *("hydra", "omegaconf", "tensorboard", "torch.utils.tensorboard", "matplotlib", "faiss"),
    *("sklearn", "scipy.sparse", "safetensors", "requests", "gdown", "filelock", "fastapi"),
    *("uvicorn", "prometheus_client", "torch._dynamo"),
    *("slide.training", "slide.config", "slide.data", "slide.model"),
}


def test_variables_that_cannot_be(monkeypatch):
    """Numba would say no name, or end the process in its first kernel."""
    said = run_program("-c", "import slide", NUMBA_NUM_THREADS="0").stderr
    sentence = "NUMBA_NUM_THREADS=0: Number of threads specified must be > 0."
    assert said.endswith(f"ValueError: {sentence}\n")
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", 100_000)
    with pytest.raises(ValueError, match="NUMBA_NUM_THREADS must be at most 8192, not 100000"):
        runpy.run_path(runtime.__file__)
    monkeypatch.setenv("SLIDE_BACKEND", "nonsense")
    with pytest.raises(ValueError, match="SLIDE_BACKEND must be one of kernels, torch, not 'non"):
        runpy.run_path(backend.__file__)


def test_what_an_import_changes():
    """The program that imports slide keeps its signals, its threads, and most of its variables."""
    kept = ("OMP_", "GOMP_", "KMP_", "THP_")
    variables = {n: value for n, value in os.environ.items() if not n.startswith(kept)}
    found = output_of("-c", HOST.replace("{HEAVY}", str(HEAVY)), variables=variables)
    changed, heavy, rooms = map(ast.literal_eval, found.splitlines())
    ours = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "THP_MEM_ALLOC_ENABLE"}
    assert {name for name in changed if not name.startswith("KMP_")} == ours
    assert not heavy
    # The guides name `slide.training.CoreShare` and others in full.
    assert rooms == [f"slide.{room}" for room in slide._PACKAGES]
    assert set(slide._PACKAGES) <= set(dir(slide))
    # Completion offers no module that public names are only imported from.
    assert not {"typing", "utils", "ops", "backend", "sparse", "row_gradients"} & set(dir(slide))
    with pytest.raises(AttributeError, match="no attribute 'trainings'"):
        _ = slide.trainings


class TestMemory:
    """What glibc is told when slide is imported."""

    @pytest.fixture
    def calls(self, monkeypatch):
        asked = []
        library = SimpleNamespace(mallopt=lambda *pair: asked.append(pair))
        monkeypatch.setattr(runtime.ctypes, "CDLL", lambda name: library)
        monkeypatch.setattr(runtime.sys, "platform", "linux")
        for name in (*self.NAMES, "GLIBC_TUNABLES"):
            monkeypatch.delenv(name, raising=False)
        return asked

    NAMES = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")

    @pytest.mark.parametrize(
        ("name", "value", "asked"),
        [
            *((name, "1000000", []) for name in NAMES),
            ("GLIBC_TUNABLES", "glibc.malloc.perturb=1", []),
            # M_MMAP_THRESHOLD is -3 and M_TRIM_THRESHOLD -1 in malloc.h.
            ("GLIBC_TUNABLES", "x=1", [(-3, 32 << 20), (-1, 256 << 20)]),
        ],
    )
    def test_large_arrays_are_kept_unless_the_environment_says(
        self, calls, monkeypatch, name, value, asked
    ):
        monkeypatch.setenv(name, value)
        runtime._keep_freed_memory()
        assert calls == asked


def test_one_thread_within_a_block(monkeypatch):
    threads = [3]
    monkeypatch.setattr(runtime.numba, "get_num_threads", lambda: threads[-1])
    monkeypatch.setattr(runtime.numba, "set_num_threads", threads.append)
    with runtime.one_thread():
        assert runtime.num_threads() == 1
        with pytest.raises(KeyError), runtime.one_thread():
            raise KeyError
    assert threads == [3, 1, 3]
    with pytest.raises(KeyError), runtime.one_thread():
        raise KeyError
    assert threads == [3, 1, 3, 1, 3]


def test_draws_of_a_thread_are_those_of_the_seed():
    def drawn():
        network = slide.SlideNetwork(9, [8], 7, slide.FullSampler, dropout=0.5)
        kept = runtime.get_draws()
        found = [network.encode(torch.eye(9)) for _ in range(2)]
        runtime.set_draws(kept)
        assert torch.equal(network.encode(torch.eye(9)), found[0])
        return [p.detach() for p in network.parameters()] + found

    torch.manual_seed(3)
    expected, before = drawn(), torch.get_rng_state()
    with runtime.own_draws(3):
        found = drawn()
        with runtime.own_draws(4):
            assert not torch.equal(drawn()[0], found[0])
    assert torch.equal(torch.get_rng_state(), before)
    assert all(map(torch.equal, found, expected))
    assert runtime.generator("meta") is None


def test_one_thread_in_deterministic_mode_whoever_set_it():
    threads = torch.get_num_threads()
    try:
        torch.use_deterministic_algorithms(True)
        torch.set_num_threads(2)
        runtime.set_deterministic(True, 0)
        assert torch.get_num_threads() == 1
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_num_threads(threads)


class TestKeys:
    def test_is_a_function_of_all_parts(self):
        parts = [(), (0,), (1,), (0, 0), (0, 1), (1, 0), (-1,), (2**63,), (1, 0, 0)]
        keys = [random_key(*p) for p in parts]
        assert all(isinstance(key, np.uint64) for key in keys)
        assert len(set(keys)) == len(parts)
        assert keys == [random_key(*p) for p in parts]

    def test_one_bit_of_a_part_changes_half_of_the_key(self):
        for place in range(2):
            flips = []
            for bit in range(64):
                parts = [5, 9]
                key = random_key(*parts)
                parts[place] ^= 1 << bit
                flips.append(int(key ^ random_key(*parts)).bit_count())
            assert 29 < np.mean(flips) < 35
            assert min(flips) > 12


def test_views_share_memory():
    tensor = torch.zeros(2, 3, requires_grad=True)
    array_view(tensor)[1, 2] = 5
    assert tensor[1, 2] == 5
    with pytest.raises(ValueError, match="contiguous"):
        array_view(tensor.T)
    with pytest.raises(ValueError, match="on meta"):
        array_view(torch.zeros(2, device="meta"))


@pytest.fixture
def processor(monkeypatch):
    """Sets what a processor is: whether it has instructions for bfloat16, and times of products."""
    before = backend._chosen["products"]
    backend._chosen["products"] = "auto"

    def set_to(instructions, bfloat16=1.0, float32=2.0):
        times = backend.ProductTimes(bfloat16=bfloat16, float32=float32)
        timed = functools.cache(lambda: times)
        monkeypatch.setattr(backend, "_has_bfloat16_instructions", lambda: instructions)
        monkeypatch.setattr(backend, "product_times", timed)
        return timed.cache_info

    yield set_to
    backend._chosen["products"] = before


def test_the_type_of_products_is_the_faster_one(processor):
    processor(True, bfloat16=1.0, float32=2.0)
    assert backend.choose_products() == "bfloat16"
    assert backend.described_products() == "bfloat16 (bfloat16 1.0 ms, float32 2.0 ms)"
    processor(True, bfloat16=2.0, float32=1.0)
    assert backend.choose_products() == "float32"
    assert backend.choose_products("bfloat16") == "bfloat16"
    timed = processor(False)
    assert backend.choose_products("auto") == "float32"
    assert not timed().currsize
    with pytest.raises(
        ValueError, match="products must be one of auto, bfloat16, float32, not 'int8'"
    ):
        backend.choose_products("int8")


def test_the_type_of_products_is_not_timed_in_deterministic_mode(processor):
    timed = processor(True, bfloat16=2.0, float32=1.0)
    torch.use_deterministic_algorithms(True)
    try:
        assert backend.choose_products() == "bfloat16"
    finally:
        torch.use_deterministic_algorithms(False)
    assert not timed().currsize


def test_both_types_of_products_are_timed():
    assert min(backend.product_times()) > 0
