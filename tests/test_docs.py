"""The pages' examples run as they stand, one block after the other; links and commands are true."""

import ast
import inspect
import re
import shlex
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
import torch
import yaml
from helpers import job
from omegaconf import DictConfig, OmegaConf

import slide
from slide.utils.checks import override_key

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
GUIDES = [ROOT / "README.md", ROOT / "slide" / "README.md", *PAGES]
WITH_CODE = [page for page in PAGES if "```python" in page.read_text()]


def name(page):
    return page.relative_to(ROOT).as_posix()


@pytest.mark.compiled_only
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("page", WITH_CODE, ids=name)
def test_examples(page):
    torch.manual_seed(0)
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    names: dict = {}
    for block in blocks:
        exec(compile(block, page.name, "exec"), names)


@pytest.mark.compiled_only
@pytest.mark.parametrize("number", [0, 1, 2], ids=["loss", "sampler", "dataset"])
def test_parts_of_your_own(tmp_path, monkeypatch, number):
    """The section of that name: its module is written, and its commands run and are resumed."""
    page = (ROOT / "docs/whole-programs.md").read_text()
    section = page.partition("## Parts of your own")[2].partition("\n## ")[0]
    (module,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    (tmp_path / "my_parts.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_parts", raising=False)
    (block,) = re.findall(r"```bash\n(.*?)```", section, re.DOTALL)
    line = [line for line in block.splitlines() if "train.py" in line][number]
    words = [*shlex.split(line)[2:], "ranker=none", "trainer.epochs=1"]
    job.main(*job.tiny(tmp_path, *words))
    steps = job.checkpoint(tmp_path / "run")["step"]
    (own,) = set(re.findall(r"my_parts\.\w+", " ".join(words)))
    job.main(f"resume={tmp_path}/run", "trainer.epochs=2", f"allow_targets=[{own}]")
    assert job.checkpoint(tmp_path / "run")["step"] == 2 * steps


def test_every_result_is_on_the_page_of_results_and_in_the_site():
    results = sorted(name(page) for page in (ROOT / "results").rglob("*.md"))
    page, site = ((ROOT / path).read_text() for path in ("docs/benchmarks.md", "mkdocs.yml"))
    assert set(re.findall(r"\]\(\.\./(results/[^)]+\.md)\)", page)) >= set(results)
    assert sorted(re.findall(r": (results/\S+\.md)$", site, re.MULTILINE)) == results


def test_pages_are_short_and_in_the_site():
    site = (ROOT / "mkdocs.yml").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert len(page.read_text().split()) <= 1500, page
        assert re.search(rf": {page.name}$", site, re.MULTILINE), page


def test_the_gallery_has_every_picture():
    shown = re.findall(r"!\[[^]]+\]\(([^)]+)\)", (ROOT / "docs/gallery.md").read_text())
    files = [
        path
        for folder, ends in (("docs", ("png", "svg")), ("results", ("png",)))
        for end in ends
        for path in (ROOT / folder).rglob(f"*.{end}")
    ]
    assert sorted((ROOT / "docs" / name).resolve() for name in shown) == sorted(files)


def test_links_lead_somewhere():
    for page in {*GUIDES, *ROOT.glob("*.md")}:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            assert "://" in target or (page.parent / target).exists(), f"{page}: {target}"


def test_checks_by_name_are_stages_that_there_are():
    """Of `.ci/run`, which refuses other names; one version of ruff checks commits and merges."""
    asked = [ROOT / ".ci/run", "nothing"]
    refused = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    stages = refused.stderr.partition(":")[2].partition("(")[0].split()
    assert re.findall(r'stage\(session, "(\w+)"\)', (ROOT / "noxfile.py").read_text()) == stages
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    pinned = {word for hook in hooks for word in hook["additional_dependencies"] if "ruff" in word}
    assert pinned < {*(ROOT / "constraints.txt").read_text().split()}


def test_forms_can_be_read_and_actions_are_pinned():
    for form in (ROOT / ".github/ISSUE_TEMPLATE").glob("[!c]*.yml"):
        found = yaml.safe_load(form.read_text())
        assert {"name", "description", "body"} <= set(found)
        for part in found["body"]:
            assert part["type"] == "markdown" or {"id", "attributes"} <= set(part), form
    for flow in (ROOT / ".github/workflows").glob("*.yml"):
        used = re.findall(r"uses: (.*)", flow.read_text())
        assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}  # v[\d.]+", use) for use in used), used


def commands(page):
    """Overrides ``key=value`` of train.py and of the data command in a page's shell blocks."""
    for block in re.findall(r"```bash\n(.*?)```", page.read_text(), re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = line.partition(" #")[0].split()
            if re.search(r"train\.py|slide-train|slide-data|slide\.data", line):
                yield [word for word in words if re.match(r"[a-z_.0-9]+=", word)]


def test_commands_name_existing_keys():
    together = defaultdict(set)  # Keys by the choices that they go with.
    for words in (each for page in GUIDES for each in commands(page)):
        choices = [word for word in words if (ROOT / "conf" / word.partition("=")[0]).is_dir()]
        together[tuple(choices)] |= set(words) - set(choices)
    for choices, words in together.items():
        job.compose(*choices, *words)


def test_keys_in_the_text_exist():
    known = all_keys()
    groups = {key.partition(".")[0] for key in known if "." in key}
    for page in GUIDES:
        for key in re.findall(r"`([a-z_]+(?:\.\w+)+)(?:=[^`]*)?`", page.read_text()):
            # Files and attributes in the text, such as `active.ids`, have no group of that name.
            there = override_key(key) in known or FILE.search(key)
            assert there or key.partition(".")[0] not in groups, key


FILE = re.compile(r"\.(?:py|md|yaml|json|txt|pt|safetensors)$")


def all_keys():
    """Keys of the configuration, those of all choices of all groups."""
    waiting, found = list(job.compose().items_ex(resolve=False)), set()
    for file in (ROOT / "conf").glob("*/*.yaml"):
        if file.parent.name not in ("hydra", "recipe"):
            waiting.append((file.parent.name, job.raw(file.parent.name, file.stem)))
    while waiting:
        key, node = waiting.pop()
        found.add(key)
        if isinstance(node, DictConfig):
            waiting += [(f"{key}.{part}", x) for part, x in node.items_ex(resolve=False)]
    return found


def test_defaults_of_the_classes():
    """The table compares what the classes and the settings are."""
    page = (ROOT / "docs/choosing-a-sampler.md").read_text()
    section = page.partition("## Defaults of the classes")[2].partition("\n## ")[0]
    config = job.compose()
    rows = re.findall(r"^\| (.+?) \| `([\w.]+)=(\S+?)`(?:: .+)? \|$", section, re.MULTILINE)
    assert len(rows) == 9
    for left, key, value in rows:
        assert OmegaConf.select(config, key) == yaml.safe_load(value), key
        if call := re.fullmatch(r"`(\w+)\((\w+)=(.+)\)`", left):
            name, argument, default = call.groups()
            parameters = inspect.signature(getattr(slide, name)).parameters
            assert parameters[argument].default == ast.literal_eval(default), left


def test_public_names_are_in_the_reference():
    pages = "\n".join(page.read_text() for page in (ROOT / "docs" / "api").glob("*.md"))
    rooms = re.findall(r"^::: exports of slide\.(\w+)$", pages, re.MULTILINE)
    for public in vars(slide):
        home = getattr(getattr(slide, public), "__module__", None) or ""
        if public.startswith("_") or not home.startswith("slide."):
            continue
        assert home.split(".")[1] in rooms or f"::: slide.{public}\n" in pages, public
