"""Networks with enormous output layers on ordinary CPUs.

LSH tables choose the few outputs that matter for an input; only those are computed, get a
hand-written gradient, and are updated by a row-sparse Adam (SLIDE: Chen et al., MLSys 2020).
"""

# First: it sets up threading before torch and numba are loaded.
from slide import runtime as runtime  # isort: skip
from slide.active_set import ActiveSet as ActiveSet
from slide.functional.convolution import active_conv2d as active_conv2d
from slide.functional.csr_product import CSRMatrix as CSRMatrix
from slide.functional.csr_product import csr_matmul as csr_matmul
from slide.functional.linear import active_linear as active_linear
from slide.functional.losses import ActiveLoss as ActiveLoss
from slide.functional.losses import hardest as hardest
from slide.hashing.dwta import DWTA as DWTA
from slide.hashing.family import HashFamily as HashFamily
from slide.hashing.simhash import SimHash as SimHash
from slide.hashing.tables import HashTables as HashTables
from slide.nn.activation import Activation as Activation
from slide.nn.activation import ToDense as ToDense
from slide.nn.network import SlideNetwork as SlideNetwork
from slide.nn.sampled_conv2d import SampledConv2d as SampledConv2d
from slide.nn.sampled_linear import SampledLinear as SampledLinear
from slide.nn.sparse_input_linear import SparseInputLinear as SparseInputLinear
from slide.nn.sparse_weight_linear import SparseWeightLinear as SparseWeightLinear
from slide.optim.clipping import clip_grad_norm_ as clip_grad_norm_
from slide.optim.row_sparse_adam import RowSparseAdam as RowSparseAdam
from slide.ranking.linear_ranker import LinearRanker as LinearRanker
from slide.sampling.indexed_sampling import FaissSampler as FaissSampler
from slide.sampling.indexed_sampling import LSHSampler as LSHSampler
from slide.sampling.sampling import FullSampler as FullSampler
from slide.sampling.sampling import Sampler as Sampler
from slide.sampling.sampling import UniformSampler as UniformSampler
from slide.search.exact import exact_top_k as exact_top_k
from slide.sparse import CSR as CSR
from slide.sparse import Pattern as Pattern

__version__ = runtime.VERSION
