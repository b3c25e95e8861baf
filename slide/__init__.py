"""Networks with enormous output layers on ordinary CPUs.

A sampler chooses few outputs for a step: by uniform draws, from the labels of recent samples, by
LSH tables (SLIDE: Chen et al., MLSys 2020) or by another index. Only these outputs are computed.
Their gradients are written by hand, and a row-sparse Adam updates their rows.
"""

import typing

# These imports come first: Ctrl-C ends the others without a traceback, where they are a command's,
# and threading is set up before torch and numba are loaded.
from slide.utils import signals as _signals  # isort: skip  # noqa: F401
from slide import runtime as runtime  # isort: skip
from slide.active_set import ActiveSet as ActiveSet
from slide.functional import CSRMatrix as CSRMatrix
from slide.functional import active_conv2d as active_conv2d
from slide.functional import active_linear as active_linear
from slide.functional import csr_matmul as csr_matmul
from slide.hashing import DWTA as DWTA
from slide.hashing import HashFamily as HashFamily
from slide.hashing import HashTables as HashTables
from slide.hashing import SimHash as SimHash
from slide.nn import Activation as Activation
from slide.nn import ActiveLoss as ActiveLoss
from slide.nn import SampledConv2d as SampledConv2d
from slide.nn import SampledLinear as SampledLinear
from slide.nn import SlideNetwork as SlideNetwork
from slide.nn import SparseInputLinear as SparseInputLinear
from slide.nn import SparseWeightLinear as SparseWeightLinear
from slide.nn import ToDense as ToDense
from slide.nn import hardest as hardest
from slide.optim import RowSparseAdam as RowSparseAdam
from slide.optim import clip_grad_norm_ as clip_grad_norm_
from slide.sampling import ActiveSampler as ActiveSampler
from slide.sampling import FaissProposer as FaissProposer
from slide.sampling import FullSampler as FullSampler
from slide.sampling import LSHProposer as LSHProposer
from slide.sampling import Proposer as Proposer
from slide.sampling import RecentProposer as RecentProposer
from slide.sampling import Sampler as Sampler
from slide.sampling import SketchProposer as SketchProposer
from slide.search import exact_top_k as exact_top_k
from slide.sparse import CSR as CSR
from slide.sparse import Pattern as Pattern
from slide.sparse import as_csr as as_csr
from slide.sparse import as_pattern as as_pattern
from slide.utils import provided as _provided

if typing.TYPE_CHECKING:
    from slide.estimator import SlideClassifier as SlideClassifier
    from slide.estimator import save as save
    from slide.model import Model as Model
    from slide.model import load as load

__version__ = runtime.VERSION
_provided.provide("RerankerFormat", module="slide.ranking.saved")

# Imported when they are asked for: they bring the data sets, and what these need.
_LATER = {
    "Model": "slide.model",
    "SlideClassifier": "slide.estimator",
    "load": "slide.model",
    "save": "slide.estimator",
}
# Packages and modules that are imported when they are named, as in slide.training.CoreShare.
_PACKAGES = ("compare", "data", "distributed", "ranking", "report", "serve", "testing", "training")


def __getattr__(name: str) -> typing.Any:
    from importlib import import_module

    if name in _PACKAGES:
        return import_module(f"slide.{name}")
    if name not in _LATER:
        raise AttributeError(f"module 'slide' has no attribute {name!r}")
    found = getattr(import_module(_LATER[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """What users need, without the modules that it is imported from."""
    packages = {*_PACKAGES, "functional", "hashing", "nn", "optim", "runtime", "sampling", "search"}
    module = type(typing)
    own = (name for name, value in globals().items() if not isinstance(value, module))
    return sorted({*own, *_LATER, *packages})
