"""What a run says of the choice of its outputs: recall, chance, figures, warnings."""

import re
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import job
from helpers.samplers import lsh_sampler, published_sampler, sketch_sampler, uniform_sampler

import slide
from slide import FullSampler
from slide.report import read_run
from slide.sparse import Pattern
from slide.training.selection import (
    Recall,
    buckets_line,
    inspect_selection,
    selection_figures,
    selection_line,
    selection_recall,
    selection_warnings,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def recall(sampler, outputs=400):
    torch.manual_seed(0)
    layer = job.SlideNetwork(4, [16], outputs, sampler).output
    inputs = torch.randn(64, 16)
    return selection_recall(layer, inputs, layer(inputs).active, k=10, samples=64)


def test_recall_of_full_is_one():
    assert recall(FullSampler) == (1, 1, 1)
    assert recall(partial(uniform_sampler, active=1000)) == (1, 1, 1)


@pytest.mark.parametrize("active", [40, 200])
def test_recall_of_uniform_is_its_share(active):
    found = recall(partial(uniform_sampler, active=active, mode="per_sample"))
    # 640 draws.
    share = active / 400
    assert found.chance == pytest.approx(share)
    assert found.with_labels == found.without_labels
    assert abs(found.with_labels - share) < 4 * (share * (1 - share) / 640) ** 0.5


def test_recall_of_tables_is_above_its_share():
    sampler = partial(lsh_sampler, active=40, mode="per_sample", candidate_share=1.0)
    found = recall(sampler)
    assert found.with_labels > 0.3
    assert found.chance == pytest.approx(0.1, abs=0.01)


def layer_and_labels(sampler):
    """A layer, inputs, the eight best outputs of each, and three of these as its labels."""
    layer = job.SlideNetwork(4, [16], 400, sampler).output
    inputs = torch.randn(20, 16, generator=torch.Generator().manual_seed(0))
    best = layer.top_k(inputs, 8)[1].numpy().astype(np.int32)
    return layer, inputs, best, Pattern(np.arange(0, 61, 3), best[:, [0, 2, 3]].ravel())


@pytest.mark.parametrize("mode", ["per_sample", "shared"])
def test_recall_without_labels(mode):
    """The labels are in the sets in any case: here they are among the best."""
    sampler = partial(uniform_sampler, active=3, mode=mode, weighting="none")
    layer, inputs, best, labels = layer_and_labels(sampler)
    active = layer(inputs, labels).active
    held = [len(set(best[b].tolist()) & set(active.row(b).tolist())) for b in range(20)]
    found = selection_recall(layer, inputs, active, k=5, samples=15)
    assert found.with_labels == pytest.approx(
        np.mean([len({*best[b, :5]} & {*active.row(b)}) for b in range(15)]) / 5
    )
    assert found.without_labels == pytest.approx((np.mean(held[:15]) - 3) / 5)
    assert found.without_labels < found.with_labels
    assert (found.without_labels == 0) == (mode == "per_sample")
    assert found.chance == pytest.approx(found.without_labels), "there is nothing but labels"


@pytest.mark.parametrize("weighting", ["none", "stratified"])
@pytest.mark.parametrize("samples", [2, 16])
def test_recall_of_groups(weighting, samples):
    """Of one sample of each group that looks up outputs; the others get what it has found."""
    options = {"mode": "grouped", "group_size": 6, "lookups": 1, "weighting": weighting}
    sampler = partial(lsh_sampler, active=60, candidate_share=0.5, **options)
    layer, inputs, _, labels = layer_and_labels(sampler)
    active = layer(inputs, labels).active
    found = selection_recall(layer, inputs, active, k=5, samples=samples)
    scores = inputs.double() @ layer.weight.double().T + layer.bias.double()
    shares = []
    for begin in (0, 6, 12, 18)[:samples]:
        b = active.groups.order[begin]
        held, own = set(active.row(b).tolist()), set(np.split(labels.indices, 20)[b].tolist())
        best = scores[b].argsort(descending=True).tolist()
        others = [row for row in best if row not in own][:5]
        chance = (len(held) - len(own)) / (400 - len(own))
        shares.append([len(held & set(best[:5])) / 5, len(held & set(others)) / 5, chance])
    np.testing.assert_allclose(found, np.mean(shares, axis=0), rtol=1e-6)
    assert found.without_labels > 1.5 * found.chance


@pytest.mark.parametrize("mode", ["per_sample", "shared"])
def test_chance_is_the_recall_of_uniform_draws(mode):
    """The labels of other samples are in a shared set, and no draws."""
    sampler = partial(uniform_sampler, active=120, mode=mode, weighting="none")
    layer, inputs, _, labels = layer_and_labels(sampler)
    found = [
        selection_recall(layer, inputs, layer(inputs, labels).active, k=5, samples=20)
        for _ in range(60)
    ]
    # 6,000 outputs, which in a shared set are drawn together.
    gains = [each.without_labels - each.chance for each in found]
    assert abs(np.mean(gains)) < 4 * np.std(gains) / 60**0.5 < 0.03
    assert {each.chance for each in found} == {found[0].chance}
    if mode == "per_sample":
        assert found[0].chance == pytest.approx(117 / 397)
    else:
        distinct = len(np.unique(labels.indices))
        assert found[0].chance > (120 - distinct) / (400 - distinct)


@pytest.mark.parametrize("made", [lsh_sampler, published_sampler, sketch_sampler])
def test_what_the_log_says_of_a_selection(made):
    sampler = partial(made, active=40, mode="per_sample", candidate_share=0.5)
    layer = job.SlideNetwork(4, [16], 400, sampler).output.train()
    inputs, labels = torch.randn(20, 16), Pattern.from_lists([[3, 4]] * 20)
    active = layer(inputs, labels).active
    found = inspect_selection(layer, inputs, active)
    names = ("recall", "recall_without_labels", "chance")
    expected = selection_recall(layer, inputs, active)
    assert Recall(*(found[f"selection/{name}"] for name in names)) == expected
    assert 0 < found["selection/candidates"] <= 19
    assert found["selection/candidates"] + found["selection/filled"] == 38
    scanned = made is sketch_sampler
    assert ("tables/largest_bucket" in found) != scanned
    assert (found["look_up/rows_seen"] == 400) == scanned, "sketches rank all of a small layer"
    assert found["look_up/rows_seen_share"] == pytest.approx(found["look_up/rows_seen"] / 400)


def test_nobody_chooses_a_set_of_all_outputs():
    layer = job.SlideNetwork(4, [16], 400, FullSampler).output
    inputs = torch.randn(20, 16)
    assert inspect_selection(layer, inputs, layer(inputs).active) == {}


def log(recalls, chance=0.1, **scalars):
    """Measurements at the steps 10, 20, ..., of which the second half counts."""
    known = {name.replace("__", "/"): value for name, value in scalars.items()}
    wrong = {
        "selection/recall_without_labels": 0.9,
        "selection/chance": 0.9,
        **dict.fromkeys(known, 7),
    }
    lines = [{"step": 10 * (i + 1), **wrong} for i in range(len(recalls))]
    for i, value in enumerate(recalls, len(recalls) + 1):
        scores = {"selection/recall_without_labels": value, "selection/chance": chance}
        lines.append({"step": 10 * i, **scores, **known})
    return lines


def test_figures_are_means_over_the_second_half(tmp_path, monkeypatch):
    network = job.make_network(job.make_data(tmp_path))
    measured = {"selection__candidates": 4.0, "selection__filled": 30.0}
    found = selection_figures(log([0.2, 0.3], **measured), network)
    sizes = {"directions": 8, "num_tables": 8, "hashes_per_table": 2}
    expected = {
        "candidates": 4,
        "filled": 30,
        "recall_at_10": 0.25,
        "chance_recall_at_10": 0.1,
        **sizes,
    }
    assert found == pytest.approx(expected), "nothing was rebuilt, and rows were not counted"
    monkeypatch.setattr(network.output.sampler, "rebuilds", 3)
    assert selection_figures([], network) == {"rebuilds": 3, **sizes}


def test_the_line_leaves_out_what_is_not_known():
    summary = {"active_mean": 1024.0, "recall_at_10": 0.25, "chance_recall_at_10": 0.1}
    said = "1,024 outputs each; recall of the ten best 0.250 (by chance 0.100)"
    assert selection_line(summary) == said
    summary |= {"rebuilds": 3, "rebuild_seconds": 1.25, "rows_seen_share": 0.0312}
    assert selection_line(summary) == f"{said}; 3.1% of the rows read; 3 rebuilds and upkeep 1.2 s"
    sizes = {"directions": 120, "num_tables": 8, "hashes_per_table": 1}
    tables = "120 directions; 8 tables (L); 1 hash in a code (K)"
    assert selection_line({"active_mean": 10.0, **sizes}) == f"10 outputs each; {tables}"
    assert selection_line({"active_mean": 10.0, "directions": 1}) == "10 outputs each; 1 direction"
    found = {"active_mean": 1000.0, "candidates": 220.4, "filled": 774.25}
    said = "1,000 outputs each; 220.4 of them looked up, 774.2 drawn at random, the others labels"
    assert selection_line(found) == said


LOOKED_UP = {"selection__candidates": 8.0}
UNIFORM = SimpleNamespace(output=SimpleNamespace(sampler=uniform_sampler(4, 16)))


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (log([0.1, 0.11, 0.09, 0.12, 0.08], **LOOKED_UP), "few of the ten best"),
        (log([0.05] * 5, **LOOKED_UP), r"recall 0.050, by chance 0.100\): compare precision with"),
        (log([0.1] * 5, selection__candidates=0.1), r"raise sampler\.active, if labels fill"),
    ],
)
def test_warnings_name_the_key(lines, said):
    (found,) = selection_warnings(lines, UNIFORM)
    assert re.search(said, found)
    assert keys_in(found) <= KEYS


KEYS = {f"hash.{key}" for key in job.raw("hash", "simhash")} | {"sampler.active"}


def keys_in(sentence):
    return set(re.findall(r"(?:hash|sampler)(?:\.\w+)+", sentence))


@pytest.mark.parametrize(
    ("made", "sizes", "outputs", "said"),
    [
        (lsh_sampler, (1, 1), 12_000, r"% of the entries .* leave out: raise hash\.hashes_per_tab"),
        (lsh_sampler, (None, 4), 12_000, None),
        (lsh_sampler, (None, None), 12_000, None),
        (lsh_sampler, (10, 8), 400, None),
        (
            *(lsh_sampler, (2, 8), 400),
            r"an input reads \d\d\d\.\d% of the outputs, so .*: raise hash\.hashes_per_table",
        ),
        (lsh_sampler, (None, None), 80, None),  # That is the default, and it takes no time.
        (published_sampler, (1, 1), 12_000, r"% of the entries of hash tables are in buckets wit"),
        (published_sampler, (1, 20), 400, r"reads \d\d\.\d% .* or lower hash\.num_tables \(L\)"),
        (published_sampler, (8, 1), 12_000, None),
        (published_sampler, (4, 16), 12_000, None),
        (sketch_sampler, None, 400, None),  # It has no tables, and sees all rows.
    ],
)
def test_tables_that_leave_rows_out_or_see_too_many(made, sizes, outputs, said):
    options: dict[str, int | None] = {"candidate_share": None}
    if sizes is not None:
        options |= dict(zip(("hashes_per_table", "num_tables"), sizes, strict=True))
    torch.manual_seed(0)
    sampler = partial(made, active=70, mode="per_sample", **options)
    layer = slide.SampledLinear(32, outputs, sampler(32, outputs))
    inputs, labels = torch.randn(64, 32), Pattern.from_lists([[3, 4]] * 64)
    active = layer(inputs, labels).active
    lines = [{"step": 1, **inspect_selection(layer, inputs, active, samples=2)}]
    found = selection_warnings(lines, SimpleNamespace(output=layer))
    if said is None:
        assert found == []
        return
    (found,) = found
    assert re.search(said, found)
    assert keys_in(found) <= KEYS


@pytest.mark.parametrize(
    ("seen", "lost", "said"),
    [
        (0.49, 0.49, None),
        (0.51, 0.49, "an input reads 51.0% of the outputs, so look-ups save little"),
        (0.51, 0.51, "51.0% of the entries of hash tables are in buckets with too many outputs"),
        (0.0, 0.75, "75.0% of the entries"),
    ],
)
@pytest.mark.parametrize("given", ["hashes_per_table", "num_tables", None])
def test_warnings_of_tables_whose_sizes_were_given(seen, lost, said, given):
    """What is more than half, in the second half of the steps."""
    sizes = {} if given is None else {given: 3}
    sampler = lsh_sampler(4, 16, **sizes)
    scalars = {"look_up__rows_seen_share": seen, "tables__left_out_share": lost}
    network = SimpleNamespace(output=SimpleNamespace(sampler=sampler))
    found = selection_warnings(log([0.3, 0.4], **scalars), network)
    if said is None or given is None:
        assert found == []
    else:
        assert [sentence.startswith(said) for sentence in found] == [True]


@pytest.mark.parametrize(
    ("made", "sizes", "said"),
    [
        (lsh_sampler, {"hashes_per_table": 6}, r"6\.\d outputs in a bucket on average, \d+ in .*"),
        (
            *(published_sampler, {"hashes_per_table": 1, "num_tables": 2, "bucket_capacity": 8}),
            r"\d+\.\d outputs .*, 8 in the largest; \d\d\.\d% of the entries do not fit: raise .*",
        ),
        (lsh_sampler, {}, ""),
        (sketch_sampler, {}, ""),
        (uniform_sampler, {}, ""),
    ],
)
def test_what_buckets_hold_where_their_sizes_were_given(made, sizes, said):
    torch.manual_seed(0)
    layer = slide.SampledLinear(16, 400, made(16, 400, active=40, **sizes))
    network = SimpleNamespace(output=layer)
    assert buckets_line(network) == "", "there are none before the first step"
    layer(torch.randn(4, 16))
    assert re.fullmatch(said, buckets_line(network))


def test_tables_that_nobody_has_read_are_neither_full_nor_empty():
    """The labels of a batch leave no places of a shared set."""
    layer = slide.SampledLinear(32, 12_000, lsh_sampler(32, 12_000, active=2, num_tables=4))
    inputs, labels = torch.randn(4, 32), Pattern.from_lists([[1, 2], [3, 4], [5, 6], [7, 8]])
    found = inspect_selection(layer, inputs, layer(inputs, labels).active, samples=2)
    assert found["selection/candidates"] == found["look_up/rows_seen"] == 0
    assert selection_warnings([{"step": 1, **found}], SimpleNamespace(output=layer)) == []


@pytest.mark.parametrize(
    "lines",
    [
        log([0.2, 0.21, 0.19, 0.2, 0.22], **LOOKED_UP),  # They find more.
        log([0.1] * 5),  # Nothing is looked up.
        log([0.1] * 4, **LOOKED_UP),  # That says little.
        [],
    ],
)
def test_no_warning_where_there_is_no_reason(lines):
    assert selection_warnings(lines, UNIFORM) == []


def test_a_run_says_it(tmp_path, capsys):
    more = ["sampler.mode=per_sample", "trainer.recall_every=8", "ranker=none", "hash.L=5"]
    job.main(*job.tiny(tmp_path, *more))
    run = tmp_path / "run"
    summary, (_, last) = read_run(run).summary, job.lines(run, "selection/chance")
    said = capsys.readouterr().err
    assert said.count("look-ups save little") == said.count("\nbuckets   ") == 1
    assert any("look-ups save little" in sentence for sentence in summary["warnings"])
    assert f"\nsets      {selection_line(summary)}\n" in said
    for name, scalar in (
        ("recall_at_10", "selection/recall_without_labels"),
        ("chance_recall_at_10", "selection/chance"),
        ("rows_seen_share", "look_up/rows_seen_share"),
    ):
        assert summary[name] == pytest.approx(last[scalar], abs=1e-6), "the second of two"
    assert summary["rebuilds"] >= 1
    assert read_run(run).settings["hash.num_tables"] == 5, "L is a name of it"
