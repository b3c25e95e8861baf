"""What a release is made of: versions, the conda recipe and the workflows agree with each other."""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
# Names that conda has for packages.
CONDA = {"torch": "pytorch", "matplotlib": "matplotlib-base"}


def test_requirements_are_those_of_the_tests_with_hashes():
    lines = (ROOT / "constraints.txt").read_text().lower().replace("_", "-").splitlines()
    pinned = {line.split()[0] for line in lines if not line.startswith("#")}
    text = (ROOT / "requirements.txt").read_text()
    assert "://" not in text
    packages = [line.split() for line in text.replace("\\\n", "").splitlines() if line[0] != "#"]
    assert all(any(word.startswith("--hash=sha256:") for word in words) for words in packages)
    names = {each.partition("==")[0] for each in pinned}
    found = {each for each, *_ in packages if each.partition("==")[0] in names}
    assert found <= pinned, "made from other versions: nox -s requirements"
    assert {each.partition("==")[0] for each in found} >= {"torch", "numpy", "numba", "fastapi"}


def test_the_conda_recipe_needs_what_the_package_needs():
    project = (ROOT / "pyproject.toml").read_text()
    listed = re.search(r"^dependencies = \[\n(.*?)^\]", project, re.MULTILINE | re.DOTALL)
    scripts = re.search(r"^\[project.scripts\]\n(.*?)^\[", project, re.MULTILINE | re.DOTALL)
    assert listed
    assert scripts
    needed = dict(re.findall(r'"([\w-]+)(\S*)"', listed[1]))
    text = (ROOT / "recipe/meta.yaml").read_text()
    text = (
        re.sub(r"{%.*%}", "", text).replace("{{ version }}", "1").replace("{{ PYTHON }}", "python")
    )
    recipe = yaml.safe_load(text)
    run = dict(line.split() for line in recipe["requirements"]["run"])
    assert run.pop("python") == re.search(r'requires-python = "(.*)"', project)[1]
    assert run == {CONDA.get(name, name): least for name, least in needed.items()}
    entries = [line.replace('"', "") for line in scripts[1].split("\n") if line]
    assert recipe["build"]["entry_points"] == entries


def test_actions_are_pinned_by_commit():
    for path in (ROOT / ".github/workflows").glob("*.yml"):
        used = re.findall(r"uses: (.*)", path.read_text())
        assert used, path
        for each in used:
            assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}  # v[\d.]+", each), (path.name, each)
        for job in yaml.safe_load(path.read_text())["jobs"].values():
            assert "timeout-minutes" in job, path.name
