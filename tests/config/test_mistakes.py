"""What is said of overrides before any data are read."""

import re

import pytest
from helpers import job

from slide.config.compose import combinations, mistake, read_config, readable


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (["loss=glob(*)", "seed=1"], 4),
        (["dataset=glob([m*,t*])", "seed=1,2"], 2 * 4),
    ],
)
def test_globs_are_choices_of_a_group(words, count):
    assert len(combinations(words)) == count
    with pytest.raises(ValueError, match="there is no key seeed"):
        combinations([words[0], "seeed=1"])
    with pytest.raises(ValueError, match=r"optimizer\.lr=glob.* finds no file"):
        combinations(["optimizer.lr=glob(*)"])


def test_a_glob_without_a_sweep_is_refused():
    with pytest.raises(ValueError, match=r"has several values: add -m for a run of each$"):
        read_config(["dataset=glob(*)"])


def test_keys_of_the_same_last_part_are_near():
    with pytest.raises(ValueError, match=r"did you mean trainer\.batch_size\?$"):
        combinations(["sampler.x.batch_size=3"])


def test_a_key_of_several_groups_brings_all_of_them():
    message = r"did you mean sampler\.proposer\.probes or hash\.probes\?$"
    with pytest.raises(ValueError, match=message):
        read_config(["probes=3"])


@pytest.mark.parametrize(
    "path",
    ["a_lr=0.1,hidden=_64_", "/home/jürgen/x", "a,b", "it's (new)", "back\\", "7", "[x]", "~/x"],
)
def test_paths_are_read_as_they_are(path):
    assert read_config([f"run_dir={path}", f"+dataset.root={path}"]).run_dir == path
    combinations([f"dataset.cache={path}"], sweeps=False)
    names = "train_file", "test_file", "train_labels_file", "test_labels_file", "file"
    found = read_config(["dataset=xmc", *(f"++dataset.{name}={path}" for name in names)]).dataset
    assert [found[name] for name in names] == [path] * 5
    words = "dataset=table", f"dataset.path={path}", f"dataset.test_path={path}"
    found = read_config(words).dataset
    assert [found.path, found.test_path] == [path] * 2


def test_what_hydra_reads_as_text_stays():
    for word in (
        "resume=null",
        "run_dir='a=b'",
        "run_dir=a\\,b",
        "dataset.root=${run_dir}/x",
        "resume",
    ):
        assert readable(word) == word
    assert readable("dataset.root=a,b", sweeps=True) == "dataset.root=a,b"
    assert readable("seed=1,2") == "seed=1,2"


def test_unclear_paths_of_a_sweep_are_to_be_quoted():
    with pytest.raises(ValueError, match=r"resume=a_lr=0\.1,b_lr=0\.2 .* quote each path"):
        readable("resume=a_lr=0.1,b_lr=0.2", sweeps=True)
    quoted = "resume='a_lr=0.1','b_lr=0.2'"
    assert readable(quoted, sweeps=True) == quoted
    assert readable("resume=a_lr=0.1", sweeps=True) == "resume='a_lr=0.1'"


# Arguments, of which the last one is impossible; what takes which values is tested in tests/utils.
IMPOSSIBLE = [
    *("seed=1.5", "runtime.threads=100000", "runtime.threads=two", "runtime.deterministic=maybe"),
    *(f"runtime.device={value}" for value in ("tpu", "7", "cuda:x", "null")),
    *("dataset.num_features=0", "dataset.num_labels=x", "dataset.test_samples=1.5"),
    *("dataset.nonzeros=61", "dataset.labels_per_row=0", "dataset.popularity=-1"),
    *("dataset.noise=1", "dataset.name=2024", "run_dir=null dataset.name=null"),
    *("dataset=bibtex dataset.lenient=5", "network.prior_bias=2", "report=no", "run_dir="),
    *(f"network.hidden={value}" for value in ("[]", "8", "[8,0]", "[1.5]")),
    *(f"network.hidden_active={value}" for value in ("4", "[4,5]", "[0]", "[x]", "null")),
    *("network.dropout=nan", "network.input_dropout=1", "dataset.holdout=1"),
    *("sampler=lsh hash.hashes_per_table=32", "sampler=lsh hash.num_tables=0"),
    *(f"sampler={name} hash.num_tables=1025" for name in ("lsh", "slide2020")),
    *(f"sampler=slide2020 hash.{key}=0" for key in ("hashes_per_table", "num_tables")),
    *("runtime.timeout=0", "runtime.timeout=10000000000", "allow_targets=mine.Loss"),
    *(f"network.bias_scale={value}" for value in ("null", "-1")),
    *(
        f"recipe=slide2020 sampler=slide2020 sampler.proposer.{word}"
        for word in ("bucket_capacity=0", "bucket_policy=lifo", "fill=-1")
    ),
    *("sampler=lsh hash.probes=65", "sampler=lsh sampler.proposer.best=x"),
    *(f"sampler=lsh hash=dwta hash.{word}" for word in ("bin_size=6", "hashes_per_table=11")),
    *("sampler.mode=null", "sampler.active=-1", "sampler.candidate_share=2"),
    *("sampler.weighting=ht", "sampler.seed=-1", "sampler=index sampler.proposer.best=x"),
    *("sampler=recent sampler.proposer.recent=0", "sampler=index sampler.proposer.most_seen=0"),
    "sampler=uniform sampler.active=some",
    *("sampler=recent trainer.evaluation=sampler", "sampler=recent network.hidden_active=[4]"),
    *(f"sampler=index schedule.{word}" for word in ("first=1.5", "growth=1000")),
    *(
        "sampler=slide2020 schedule.redraw_every=-1",
        "sampler=index schedule=fixed schedule.every=x",
    ),
    *(
        f"sampler=slide2020 schedule=fixed schedule.{key}=0.5"
        for key in ("redraw_every", "redraw_first")
    ),
    *(f"optimizer.lr={value}" for value in ("0", "x", "inf", "null")),
    *(f"optimizer.betas={value}" for value in ("0.9", "[0.9]", "[0.9,1]", "[a,b]")),
    *("optimizer.eps=0", "optimizer.weight_decay=-1", "optimizer.correct_skipped=5"),
    *("optimizer.input_rate=null", "lr_schedule.warmup=1", "lr_schedule.floor=2"),
    *(f"trainer.{key}=0" for key in ("batch_size", "epochs", "log_every", "max_epochs")),
    *("trainer.max_steps=-1", "trainer.eval_every=1.5", "trainer.eval_samples=x"),
    *("trainer.checkpoint_every=null", "trainer.recall_every=true", "trainer.epochs=never"),
    *("trainer.seed=-1", "trainer.max_minutes=-1", "trainer.epochs=3 trainer.max_minutes=2"),
    *(f"ranker.classifiers.{key}=-1.5" for key in ("C", "bias", "tol", "max_iter", "threshold")),
    *(f"ranker.{key}=-1.5" for key in ("depth", "neighbours", "voted", "associated", "negatives")),
    *("ranker.objective=x", "ranker.known=x", "trainer.evaluation=fast"),
    "sampler=full sampler.active=all trainer.evaluation=sampler",
    "sampler=full sampler.active=all network.hidden_active=[4]",
]


@pytest.mark.parametrize("arguments", IMPOSSIBLE)
def test_impossible_values_are_named_before_data_are_read(tmp_path, arguments):
    *groups, setting = arguments.split(" ")
    key, value = setting.split("=")
    kept = job.tiny(tmp_path, *groups)
    if "dataset=bibtex" in groups:
        kept = [word for word in kept if not word.startswith("dataset")]
        kept += ["dataset=bibtex", f"dataset.cache={tmp_path}/cache"]
    message = job.failure(*kept, setting)
    assert message.startswith("error: ")
    assert "\n" not in message
    assert re.search(rf"\b{key.rpartition('.')[2]}\b", message), message
    shown = {"null": "None", "true": "True", "": "''"}.get(value, value)
    # Of a list, one wrong entry may be shown.
    entries = [shown, shown.replace(",", ", "), *shown.strip("[]").split(",")]
    assert any(re.search(rf"(?<!\w){re.escape(entry)}(?!\w)", message) for entry in entries), (
        message
    )
    assert not list(tmp_path.iterdir()), "something was read or written"


def test_the_default_recipe_has_a_name():
    assert read_config(["recipe=null"]) == read_config([])


def test_all_keys_of_a_choice_are_named():
    said = mistake(["dataset=debian", "dataset.path=x"])
    assert said is not None
    assert "path belongs to dataset=table; debian has holdout, name, root, cache, " in said


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("optimizer.lrr=1", "no key optimizer.lrr .*; did you mean optimizer.lr?"),
        ("optimizer.learning_rate=1", "did you mean optimizer.lr?$"),
        ("hash.k=6", r"no key hash.k .*; did you mean hash.hashes_per_table?$"),
        ("learning_rate=1", "did you mean optimizer.lr?$"),
        ("trainer.num_epochs=1", "did you mean trainer.epochs?$"),
        ("optimiser.lr=1", "no key optimiser.lr .*; did you mean optimizer.lr?"),
        ("hash.q=6", "no key hash.q .*; hash has hashes_per_table, num_tables, probes$"),
        ("max_steps=1", "no key max_steps .*; did you mean trainer.max_steps?"),
        ("selection.active=1", "no key selection.active .*; did you mean sampler.active?"),
        ("network.input_rate=1", "did you mean optimizer.input_rate?"),
        ("trainer.holdout=0.1", "no key trainer.holdout .*; did you mean dataset.holdout?"),
        ("sampler=lhs", "no sampler=lhs; the choices of sampler are auto, full, index, "),
        ("dataset=amazon", "no dataset=amazon; the choices .* xmc; did you mean amazon3m?"),
        ("sampler=null", "no sampler=null; the choices of sampler are auto, full, index, "),
        ("schedule=1.5", "no schedule=1.5; the choices of schedule are backoff, fixed$"),
        ("sampler=[lsh,full]", r"no sampler=\[lsh,full\]; the choices of sampler are auto, "),
        ("trainer=null", "trainer=null: trainer has keys of its own; --help trainer explains"),
        ("sampler.proposer=x", "=x: sampler.proposer has keys of its own; --help sampler.prop"),
        ("solver=adam", r"no key solver \(in solver=adam\)"),
        ("hash.bin_size=8", r"no key hash.bin_size \(.*\): bin_size belongs to hash=dwta; "),
        ("sampler.proposer.recent=4", "proposer.recent belongs to sampler=recent; lsh has "),
        ("zzz.qqq=1", r"no key zzz.qqq \(in zzz.qqq=1\)$"),
        ("~hash.nothing", "no key hash.nothing"),
        ("~ranker", "the configuration has no ranker; was it removed with ~?"),
        ("seed", "seed"),
        ("run_dir=/\udcc3\udcb6", r"\\udcb6' cannot be read as .*, the encoding of the locale"),
        ("dataset=/\udcc3\udcb6", r"\\udcb6' cannot be read as .*, the encoding of the locale"),
        ("a=[1", r"a=\[1 cannot be read; overrides are group=choice or key=value, and"),
        (
            "seed=1,2",
            r"seed=1,2 has several values: add -m for a run of each; a list is seed=\[1,2\]",
        ),
        ("dataset.name=,", r"a comma, a colon or a bracket is quoted twice for a shell: 'key="),
    ],
)
def test_unknown_keys_and_choices(tmp_path, argument, message):
    said = job.failure(*job.tiny(tmp_path), argument)
    assert said.startswith("error: ")
    assert "\n" not in said
    assert re.search(message.replace("?", r"\?"), said), said
    assert not list(tmp_path.iterdir())
