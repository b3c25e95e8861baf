"""A data set of the directories of Debian's or Ubuntu's source packages, from an index of contents.

    python datasets/sources/prepare.py           # then: python train.py dataset=sources
    python datasets/sources/prepare.py --index path/to/Contents-source.gz --root my/folder

datasets/contents_index.py says what rows, features and labels are.
"""

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import contents_index
from package_index import SHARES, run

prepare = partial(contents_index.prepare, kind="Contents-dsc", test_share=SHARES["sources"])

if __name__ == "__main__":
    run(prepare, __doc__.splitlines()[0], Path(__file__).parent, seed=0, min_rows=2, most_labels=30)
