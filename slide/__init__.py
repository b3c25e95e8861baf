"""Networks with enormous output layers on ordinary CPUs.

LSH tables choose the few outputs that matter for an input; only those are computed, get a
hand-written gradient, and are updated by a row-sparse Adam (SLIDE: Chen et al., MLSys 2020).
"""

# First: it sets up threading before torch and numba are loaded.
from slide import runtime as runtime  # isort: skip
from slide.active import ActiveSet as ActiveSet
from slide.clip import clip_grad_norm_ as clip_grad_norm_
from slide.conv_layers import ActiveConv2d as ActiveConv2d
from slide.convolution import active_conv2d as active_conv2d
from slide.csr_product import CSRMatrix as CSRMatrix
from slide.csr_product import csr_matmul as csr_matmul
from slide.functional import active_linear as active_linear
from slide.hashing import DWTA as DWTA
from slide.hashing import HashFamily as HashFamily
from slide.hashing import SimHash as SimHash
from slide.indexed_sampling import FaissSampler as FaissSampler
from slide.indexed_sampling import LSHSampler as LSHSampler
from slide.layers import Activation as Activation
from slide.layers import CSRLinear as CSRLinear
from slide.layers import LSHLinear as LSHLinear
from slide.layers import SparseLinear as SparseLinear
from slide.layers import ToDense as ToDense
from slide.linear import LinearRanker as LinearRanker
from slide.losses import ActiveLoss as ActiveLoss
from slide.losses import hardest as hardest
from slide.mips import exact_top_k as exact_top_k
from slide.network import SlideNetwork as SlideNetwork
from slide.optim import RowSparseAdam as RowSparseAdam
from slide.sampling import FullSampler as FullSampler
from slide.sampling import Sampler as Sampler
from slide.sampling import UniformSampler as UniformSampler
from slide.sparse import CSR as CSR
from slide.sparse import Pattern as Pattern
from slide.tables import HashTables as HashTables

__version__ = runtime.VERSION
