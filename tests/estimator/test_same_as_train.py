"""The classifier trains what ``train.py`` trains, with the same defaults."""

import threading

import numpy as np
import pytest
import scipy.sparse
from helpers import job
from hydra.utils import instantiate

import slide
from slide.config import build_network, build_optimizer, fill_in
from slide.estimator.recipe import SAMPLERS, Recipe
from slide.nn.sampled_layer import SampledLayer
from slide.ranking import EnsembleRanker
from slide.training import TrainingOptions

pytestmark = pytest.mark.usefixtures("one_thread")


def plain(value, depth=0):
    """What an object consists of, as nested dicts; for comparison."""
    if depth > 8 or isinstance(value, int | float | str | bool | type(None)):
        return value
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [plain(each, depth + 1) for each in value]
    if isinstance(value, dict):
        return {key: plain(each, depth + 1) for key, each in value.items()}
    if hasattr(value, "func"):  # A partial function.
        return [plain(value.func), plain(value.args), plain(value.keywords, depth + 1)]
    if isinstance(value, type(threading.RLock()) | type(threading.Lock())):
        return "lock"  # Its text names a place in memory.
    if callable(value) and hasattr(value, "__qualname__"):
        return value.__qualname__
    return [type(value).__name__, plain(getattr(value, "__dict__", repr(value)), depth + 1)]


@pytest.mark.parametrize("labels", [80, 30_000, 100_001])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_networks_are_equal(labels, sampler):
    config = job.compose(f"sampler={sampler}", "network.hidden=[8]" if labels > 80 else "seed=0")
    fill_in(config, num_rows=5000, num_labels=labels)
    recipe = Recipe(sampler=sampler, hidden=8 if labels > 80 else None)
    job.torch.manual_seed(0)
    expected = build_network(config, 60, labels)
    job.torch.manual_seed(0)
    found = recipe.network(60, labels, seed=0)
    for one, other in zip(found.parameters(), expected.parameters(), strict=True):
        assert job.torch.equal(one, other)
    layers = zip(found.modules(), expected.modules(), strict=True)
    for one, other in layers:
        skipped = ("_parameters", "_modules", "sampler")
        mine, theirs = (
            {k: v for k, v in vars(each).items() if k not in skipped} for each in (one, other)
        )
        assert plain(mine) == plain(theirs)
        if isinstance(one, SampledLayer) and sampler != "full":
            mine, theirs = (vars(each.sampler) for each in (one, other))
            due = [each.pop("rebuild_due", int)(samples) for each in ({**mine}, {**theirs})
                   for samples in (6399, 6400, 50_000, 900_000)]  # fmt: skip
            assert due[:4] == due[4:]
            mine, theirs = ({**each, "rebuild_due": 0} for each in (mine, theirs))
            for each in (mine, theirs):
                if each.get("proposer") is not None:
                    proposer = each["proposer"]
                    shape = {"hashes_per_table": 2, "num_tables": 3, "seed": 1}
                    proposer.family = proposer.family(16, **shape)
            assert plain(mine) == plain(theirs)
    groups = zip(
        recipe.optimizer(found).param_groups,
        build_optimizer(config, expected).param_groups,
        strict=True,
    )
    for one, other in groups:
        strip = ({k: v for k, v in each.items() if k != "params"} for each in (one, other))
        assert plain(next(strip)) == plain(next(strip))


def test_other_parts_are_equal():
    config = job.compose()
    fill_in(config, num_rows=5000, num_labels=300)
    recipe = Recipe()
    assert plain(recipe.loss()) == plain(instantiate(config.loss))
    assert recipe.rows_in_step(5000) == config.trainer.batch_size
    ranker, expected = EnsembleRanker(objective=recipe.objective), instantiate(config.ranker)
    assert plain(ranker) == plain(expected)
    options = instantiate(config.trainer, holdout=config.dataset.holdout)
    assert options == TrainingOptions(
        batch_size=recipe.rows_in_step(5000),
        epochs=recipe.epochs,
        max_epochs=recipe.max_epochs,
        max_minutes=recipe.max_minutes,
    )


@pytest.mark.parametrize("more", [{}, {"ranker": None, "epochs": 3}, {"tf_idf": True}])
def test_answers_are_equal(tmp_path, more):
    """On the same rows, with the same seed."""
    data = job.make_data(tmp_path, train_samples=300, labels_per_row=2)
    sizes = {**job.SIZES, "train_samples": 300}
    words = [f"dataset.{name}={value}" for name, value in sizes.items()]
    words += [f"dataset.cache={tmp_path}/cache", f"run_dir={tmp_path}/run", "seed=3"]
    for key, value in more.items():
        where = {"epochs": "trainer.epochs", "tf_idf": "transform.tf_idf"}.get(key, key)
        words.append(f"{where}={'none' if value is None else str(value).lower()}")
    job.main(*words, "runtime.threads=1")
    job.runtime.set_threads(1)
    x, y = data.train.features, data.train.labels
    X = scipy.sparse.csr_array((x.values, x.indices, x.indptr), (300, 60))
    Y = scipy.sparse.csr_array((np.ones(len(y.indices)), y.indices, y.indptr), (300, 80))
    model = slide.SlideClassifier(random_state=3, **more).fit(X, Y)
    run = slide.load(tmp_path / "run")
    for one, other in zip(model.model_.network.parameters(), run.network.parameters(), strict=True):
        assert job.torch.equal(one, other)
    rows = data.test.features
    mine, theirs = model.model_.predict(rows, k=5), run.predict(rows, k=5)
    np.testing.assert_array_equal(mine.labels, theirs.labels)
    np.testing.assert_array_equal(mine.scores, theirs.scores)
