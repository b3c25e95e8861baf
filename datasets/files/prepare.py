"""A data set of directories of packages, from the index of contents of a Debian or Ubuntu machine.

    python datasets/files/prepare.py           # then: python train.py dataset=files
    python datasets/files/prepare.py --index path/to/Contents-amd64.gz --root my/folder

datasets/contents_index.py says what rows, features and labels are.
"""

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import contents_index
from package_index import SHARES, run

prepare = partial(contents_index.prepare, kind="Contents-deb", test_share=SHARES["files"])

if __name__ == "__main__":
    run(prepare, __doc__.splitlines()[0], Path(__file__).parent, seed=0, min_rows=2, most_labels=30)
