"""What is said of overrides before any data are read."""

import re

import pytest
from helpers import job

from slide.config.compose import check_overrides, combinations, read_config, readable


def test_globs_are_choices_of_a_group():
    words = ["dataset=glob([m*,t*])", "seed=1,2"]
    assert len(combinations(words)) == 2 * 4
    with pytest.raises(ValueError, match="there is no key seeed"):
        combinations([words[0], "seeed=1"])
    with pytest.raises(ValueError, match=r"optimizer\.lr=glob.* finds no file"):
        combinations(["optimizer.lr=glob(*)"])


def test_a_glob_without_a_sweep_is_refused():
    with pytest.raises(ValueError, match=r"has several values: add -m for a run of each$"):
        read_config(["dataset=glob(*)"])


PATHS = ["a_lr=0.1,hidden=_64_", "/home/jürgen/x", "it's (new)", "back\\", "7", "[x]", "~/x"]


def test_paths_are_read_as_they_are():
    for path in PATHS:
        assert read_config([f"run_dir={path}", f"dataset.cache={path}"]).run_dir == path
    combinations([f"dataset.cache={path}" for path in PATHS], sweeps=False)
    path = PATHS[0]
    names = "root", "train_file", "test_file", "train_labels_file", "test_labels_file"
    found = read_config(["dataset=xmc", *(f"++dataset.{name}={path}" for name in names)]).dataset
    assert [found[name] for name in names] == [path] * 5
    assert read_config(["dataset=text", f"dataset.file={path}"]).dataset.file == path
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


def test_unclear_paths_of_a_sweep_are_to_be_quoted():
    with pytest.raises(ValueError, match=r"resume=a_lr=0\.1,b_lr=0\.2 .* quote each path"):
        readable("resume=a_lr=0.1,b_lr=0.2", sweeps=True)
    quoted = "resume='a_lr=0.1','b_lr=0.2'"
    assert readable(quoted, sweeps=True) == quoted
    assert readable("resume=a_lr=0.1", sweeps=True) == "resume='a_lr=0.1'"


# Arguments, of which the last one is impossible; what takes which values is tested in tests/utils.
IMPOSSIBLE = [
    *("seed=1.5", "runtime.threads=100000", "runtime.deterministic=maybe", "runtime.device=tpu"),
    *("runtime.timeout=0", "dataset.num_labels=x", "dataset.nonzeros=61", "dataset.noise=1"),
    *("dataset=bibtex dataset.lenient=5", "dataset.name=2024", "run_dir=null dataset.name=null"),
    *("network.prior_bias=2", "report=no", "run_dir=", "network.bias_scale=-1"),
    *(f"network.hidden={value}" for value in ("[]", "8", "[8,0]")),
    *(f"network.hidden_active={value}" for value in ("4", "[4,5]", "[x]")),
    *("network.dropout=nan", "dataset.holdout=1", "allow_targets=mine.Loss"),
    *("sampler=lsh hash.hashes_per_table=32", "sampler=slide2020 hash.num_tables=1025"),
    *("sampler=lsh hash.probes=65", "sampler=lsh hash=dwta hash.bin_size=6"),
    "recipe=slide2020 sampler=slide2020 sampler.proposer.bucket_policy=lifo",
    *("sampler.mode=null", "sampler.active=-1", "sampler.weighting=ht", "sampler.seed=-1"),
    *("sampler.group_size=0", "sampler.lookups=-1", "network.prior_margin=-0.1"),
    *("sampler=lsh sampler.proposer.best=x", "sampler=recent sampler.proposer.recent=0"),
    *("sampler=sketch sampler.proposer.best=0", "sampler=faiss sampler.proposer.factory=IVFx"),
    *("sampler=recent trainer.evaluation=sampler", "sampler=recent network.hidden_active=[4]"),
    *("schedule=backoff schedule.growth=1000", "sampler=slide2020 schedule.redraw_every=-1"),
    *(f"schedule=updates schedule.{word}" for word in ("per_output=0", "at_least=0", "first=-8")),
    *(f"sampler=slide2020 schedule=fixed schedule.{key}=0.5" for key in ("every", "redraw_first")),
    *("optimizer.lr=inf", "optimizer.betas=[0.9]", "optimizer.correct_skipped=5"),
    *("optimizer.input_rate=null", "lr_schedule.warmup=1", "trainer.batch_size=0"),
    *("trainer.max_steps=-1", "trainer.recall_every=true", "trainer.epochs=never"),
    *("trainer.epochs=3 trainer.max_minutes=2", "trainer.evaluation=fast"),
    *("ranker.classifiers.C=-1.5", "ranker.depth=-1.5", "ranker.objective=x"),
    "sampler=full sampler.active=all trainer.evaluation=sampler",
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


def test_added_keys_that_something_takes():
    """What is built there, a part of the user's own, or another value by reference."""
    assert read_config(["+loss.reduction=x", "loss._target_=mine.Loss"]).loss.reduction == "x"
    assert read_config(["+scale=2", "network.hidden=['${scale}']"]).network.hidden == [2]
    with pytest.raises(ValueError, match=r"no key dataset\.fetch "):
        check_overrides(["+dataset.fetch=null", "++dataset.seed=3"])


def test_all_keys_of_a_choice_are_named():
    said = "path belongs to dataset=table; debian has holdout, name, root, cache, "
    with pytest.raises(ValueError, match=said):
        check_overrides(["dataset=debian", "dataset.path=x"])


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("sampler.x.batch_size=3", r"did you mean trainer\.batch_size?$"),
        ("probes=3", r"did you mean sampler\.proposer\.probes or hash\.probes?$"),
        ("optimizer.lrr=1", "no key optimizer.lrr .*; did you mean optimizer.lr?"),
        ("optimizer.learning_rate=1", "did you mean optimizer.lr?$"),
        ("hash.q=6", "no key hash.q .*; hash has hashes_per_table, num_tables, probes$"),
        ("selection.active=1", "no key selection.active .*; did you mean sampler.active?"),
        ("dataset=amazon", "no dataset=amazon; the choices .* xmc; did you mean amazon3m?"),
        ("sampler=null", "no sampler=null; the choices of sampler are auto, faiss, full, lsh, "),
        ("sampler=index", "no sampler=index; the choices of sampler are auto, faiss, full, lsh, "),
        ("sampler=[lsh,full]", r"no sampler=\[lsh,full\]; the choices of sampler are auto, "),
        ("sampler.proposer=x", "=x: sampler.proposer has keys of its own; --help sampler.prop"),
        ("solver=adam", r"no key solver \(in solver=adam\)"),
        ("hash.bin_size=8", r"no key hash.bin_size \(.*\): bin_size belongs to hash=dwta; "),
        ("sampler.proposer.recent=4", "proposer.recent belongs to sampler=recent; lsh has "),
        ("~hash.nothing", "no key hash.nothing"),
        ("~ranker", "the configuration has no ranker; was it removed with ~?"),
        ("run_dir=/\udcc3\udcb6", r"\\udcb6' cannot be read as .*, the encoding of the locale"),
        ("a=[1", r"a=\[1 cannot be read; overrides are group=choice or key=value, and"),
        (
            "seed=1,2",
            r"seed=1,2 has several values: add -m for a run of each; a list is seed=\[1,2\]",
        ),
        ("+trainer.foo=1", r"no key trainer.foo \(.*\); trainer has batch_size, epochs, "),
        ("+trainer.epoch=1", r"no key trainer.epoch .*; did you mean trainer\.epochs?$"),
        ("+optimizer.x=1", "no key optimizer.x .*; optimizer has lr, input_rate, "),
        ("+sampler.y=2", "no key sampler.y .*; sampler has active, mode, "),
        ("+network.foo=1", "no key network.foo .*; network has hidden, "),
        ("+epochs=3", r"no key epochs .*; did you mean trainer\.epochs?$"),
        ("+foo=1", r"no key foo \(in \+foo=1\); --help lists all keys$"),
        ("sampler.L=5", "no key sampler.L .*; did you mean hash.L?$"),
        ("sampler.K=4", "no key sampler.K .*; did you mean hash.K?$"),
        ("network.epoch=3", r"no key network.epoch .*; did you mean trainer\.epochs?$"),
        ("trainer.learning-rate=1", r"; did you mean optimizer\.lr?$"),
        ("rebuild=100", "no key rebuild .*; did you mean schedule=fixed schedule.every?$"),
        ("sampler.rebuild=100", "did you mean schedule=fixed schedule.every=100?$"),
        ("posts.csv", "posts.csv is no setting; dataset=table dataset.path=posts.csv reads a tab"),
        ("mine/train.txt", "dataset=xmc dataset.root=mine dataset.train_file=train.txt reads"),
        ("sketch", r"sketch is no setting; did you mean sampler=sketch?$"),
        ("sampler", "sampler is no setting; sampler=auto | faiss | .*--help sampler explains"),
        ("epochs", "--help explains them; did you mean trainer.epochs?$"),
        ("trainer.batch_size=???", r"=\?\?\?: \?\?\? is no value; --help trainer.batch_size exp"),
        ("dataset.cache=null", "dataset.cache must be the path of a folder, not None"),
        ("hydra.run.dir=x", "hydra.run.dir=x has no effect: the folder of a run is run_dir=x$"),
        ("hydra.verbose=true", "has no effect: keys of Hydra belong to sweeps"),
        ("--config-dir=x", "--config-dir has no effect: settings are keys and choices"),
        ("-cn=x", "--config-name has no effect: settings are keys and choices"),
        ("--resolve", "--resolve goes with --cfg job"),
        ("dataset.name=,", r"a comma, a colon or a bracket is quoted twice for a shell: 'key="),
    ],
)
def test_unknown_keys_and_choices(tmp_path, argument, message):
    said = job.failure(*job.tiny(tmp_path), argument)
    assert said.startswith("error: ")
    assert "\n" not in said
    assert re.search(re.sub(r"(?<!\\)\?", r"\?", message), said), said
    assert not list(tmp_path.iterdir())
