"""The real data sets of the pages on precision: how to choose one, and how much is held out.

debian: packages and what they depend on. bibtex, delicious: tags. fb15k: a knowledge graph,
FB15k-237. gowalla: places that a user visits, and later ones. files: directories and their files.
"""

from pathlib import Path

from slide.config import find_conf

# Share of the training rows that is held out where settings are compared.
HELD_OUT = {
    "debian": 0.1,
    "bibtex": 0.15,
    "delicious": 0.15,
    "fb15k": 0.05,
    "gowalla": 0.1,
    "files": 0.03,
}
# Sets that need no files.
GENERATED = {
    "synthetic": ["dataset=synthetic"],
    "amazon670k_like": [
        "dataset=amazon670k_like",
        "dataset.train_samples=50000",
        "dataset.test_samples=1000",
        "dataset.cache=datasets/amazon670k_like/cache_50000",
        "trainer.max_epochs=5",
    ],
}


def place(name: str, root: Path) -> list[str]:
    """The overrides that choose a set in a folder of ``root``.

    A name that conf/dataset/ does not know is a folder of train.txt and test.txt in XMC text.
    """
    known = (find_conf() / "dataset" / f"{name}.yaml").is_file()
    chosen = [f"dataset={name}"] if known else ["dataset=xmc", f"dataset.name={name}"]
    return [*chosen, f"dataset.root={root / name}"]
