"""Files of rows that are damaged at random: an error that names the place, or the rows."""

import itertools

import pytest
from helpers import corpus, damage, datafiles, job, naive_rows
from helpers.damage import REPEAT, TEXTUAL

from slide.data.row_files import VARIANTS

SIZES = {"train_samples": 12, "test_samples": 4, "num_features": 60, "num_labels": 40}


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Files of generated rows by variant."""
    folder = tmp_path_factory.mktemp("texts")
    data = job.make_data(folder, **SIZES)
    texts = {}
    for format in VARIANTS:
        datafiles.write_rows(folder, data, {"format": format})
        texts[format] = (folder / "train.txt").read_bytes()
    return texts


@pytest.mark.parametrize("format", VARIANTS)
def test_damaged_rows(tmp_path, texts, format):
    variant = VARIANTS[format]
    whole = 0
    repeat = int(300 * REPEAT)
    for seed in range(repeat):
        rng = damage.rng_of(format, seed)
        data = damage.damage(rng, texts[format], TEXTUAL)
        options = {"lenient": rng.random() < 0.3, "chunk_bytes": rng.choice([1, 50, 1 << 20])}
        agree(tmp_path, data, format, options)
        whole += accepts(data, variant, options["lenient"])
    assert 0.1 * repeat < whole < 0.9 * repeat, "damage is too small or too great"


def agree(folder, data, format, options):
    """Fail unless reader and naive parser agree."""
    with corpus.kept_on_failure(format, data):
        naive_rows.assert_agrees(folder / "data.txt", data, VARIANTS[format], **options)


@pytest.mark.parametrize("format", VARIANTS)
def test_files_of_the_corpus(tmp_path, format):
    files = corpus.kept(format)
    accepted = [accepts(data, VARIANTS[format], False) for data in files.values()]
    assert 0 < sum(accepted) < len(files), "the corpus has files of both kinds"
    for name, data in files.items():
        for lenient, size in itertools.product((False, True), (1, 1 << 20)):
            agree(tmp_path, data, format, {"lenient": lenient, "chunk_bytes": size})
        for seed in range(int(5 * REPEAT)):
            rng = damage.rng_of(name, seed)
            damaged = damage.damage(rng, data, TEXTUAL)
            agree(tmp_path, damaged, format, {"lenient": rng.random() < 0.3, "chunk_bytes": 50})


def accepts(data, variant, lenient):
    try:
        naive_rows.parse(data, variant, lenient)
    except naive_rows.BadLine:
        return False
    return True
