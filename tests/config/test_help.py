"""Each setting is explained once, beside its definition: help and docs come from that."""

import re
from collections import Counter

import pytest
from helpers import job
from omegaconf import OmegaConf

from slide.config.help import help_on, read_groups, read_page, sections, train_help

FILES = [*sorted(job.CONF.glob("[!r]*/*.yaml")), *sorted(job.CONF.glob("ranker/*.yaml"))]
# The settings that most users need; docs/settings.md shows these, --help all.
COMMON = (
    *("dataset", "dataset.root", "dataset.holdout", "network.hidden", "sampler", "sampler.active"),
    *("sampler.mode", "loss", "ranker", "recipe", "optimizer.lr", "trainer.batch_size"),
    *("trainer.epochs", "trainer.evaluation", "resume"),
)
# Keys that are no settings: what a file builds, and where its files come from.
INTERNAL = {"_target_", "_partial_", "_args_", "look_up", "mirrors", "hint", "defaults", "hydra"}


def settings_of(config, above, owner=""):
    """The keys that a user sets: not internal, and not taken from another group.

    Each with its owner, the part that takes it. The choices of a group share its keys, but the
    parts inside of them, such as two proposers, mean their own by one name; so do two schedules,
    which take a key of the group.
    """
    takers = takers_of(config)
    for key, value in config.items():
        if isinstance(value, dict):
            yield from settings_of(value, f"{above}{key}.", value.get("_target_", owner))
        elif key not in INTERNAL and not str(value).startswith("${"):
            yield takers.get(f"${{{above}{key}}}", owner), above + key


def takers_of(config):
    """The parts of a page that refer to another value, by the reference."""
    parts = [value for value in config.values() if isinstance(value, dict)]
    return {
        value: part.get("_target_", "")
        for part in parts
        for value in part.values()
        if str(value).startswith("${")
    }


def every_setting():
    found = {("", key) for _, key in settings_of(load(job.CONF / "train.yaml"), "")}
    for path in FILES:
        found |= set(settings_of(load(path), f"{path.parent.name}."))
    return found


def load(path):
    values = OmegaConf.to_container(OmegaConf.load(path))
    return {key: value for key, value in values.items() if key not in INTERNAL}


def explained():
    """Keys that a comment explains, with their owners, as often as it does."""
    main = read_page((job.CONF / "train.yaml").read_text())
    found = Counter(("", key) for key in main.texts if key in main.values)
    for group in read_groups(job.CONF):
        for choice, page in group.pages.items():
            path = job.CONF / group.name / f"{choice}.yaml"
            owners = {key: owner for owner, key in settings_of(load(path), f"{group.name}.")}
            found.update((owners.get(key), key) for key in page.texts)
    return found


def test_each_setting_is_explained_once():
    expected, found = every_setting(), explained()
    keys = {key for _, key in expected}
    assert {"hash.probes", "dataset.holdout", "dataset.root", "dataset.name", "seed"} <= keys
    assert {"sampler.proposer.best", "ranker.classifiers.C", "trainer.epochs"} <= keys
    assert expected - found.keys() == set(), "not explained"
    assert found.keys() - expected == set(), "explained, but no setting"
    assert [key for key, count in found.items() if count > 1] == []


def test_the_help_holds_all_settings():
    found = train_help("python train.py")
    for key, owners in Counter(key for _, key in every_setting()).items():
        lines = re.findall(rf"^  {re.escape(key)}=", found, re.MULTILINE)
        assert len(lines) == owners, key
    assert max(map(len, found.splitlines())) <= 100


def test_the_command_prints_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    job.main("-h")
    said = capsys.readouterr().out
    assert said == train_help("python train.py")
    assert "python train.py [group=choice ...] [key=value ...]" in said
    assert "sampler.proposer.bucket_policy" in said
    assert not list(tmp_path.iterdir())


def test_help_on_a_group_a_section_or_a_key(capsys):
    job.main("sampler=lsh", "--help", "hash", "trainer.max_steps=3", "K")
    hashes, _, rest = capsys.readouterr().out.partition("\ntrainer\n")
    assert re.findall(r"^ {4}(\w+) ", hashes, re.MULTILINE) == ["simhash", "dwta"]
    keys = ["hashes_per_table", "num_tables", "probes", "bin_size", "packing"]
    assert re.findall(r"^  hash\.(\w+)=", hashes, re.MULTILINE) == keys
    assert re.findall(r"^  ([\w.]+)=", rest, re.MULTILINE) == [
        "trainer.max_steps",
        "hash.hashes_per_table",
    ]
    whole = train_help("")
    for name in ("dataset", "runtime", "run"):
        lines = help_on(name).splitlines()
        assert len(lines) > 1, name
        assert set(lines) <= {*whole.splitlines(), ""}, name
    assert len(help_on("dataset.name").splitlines()) < 4


def test_help_on_a_choice():
    assert help_on("lsh").startswith("  sampler=lsh                     the outputs with")
    assert help_on("eurlex4k").count("\n  dataset.num_labels=3993 ") == 1


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("lr", "; did you mean optimizer.lr?"),
        ("xyz", "; there is on dataset, network, sampler, hash, schedule, loss, optimizer, "),
    ],
)
def test_there_is_no_help_on_other_words(word, told):
    assert job.failure("--help", word).startswith(f"error: there is no help on {word}{told}")


def test_the_page_has_the_settings_that_most_users_need():
    rows = {key: row for settings in sections(job.CONF).values() for key, row in settings.items()}
    for group in read_groups(job.CONF):
        choices = [f"`{choice}`" for choice in group.pages]
        shown = f": {', '.join(choices)}" if len(choices) <= 8 else ""
        rows[group.name] = group.default, group.about + shown
    lines = [f"| `{key}` | `{rows[key][0]}` | {rows[key][1]} |" for key in COMMON]
    table = "\n".join(["| key | default | |", "|---|---|---|", *lines])
    assert table in (job.ROOT / "docs/settings.md").read_text(), f"write this there:\n{table}"
