"""Each operation as numba kernel and as torch reference, in one file, and the table that picks.

A kernel is a loop that numba compiles (`slide.ops.compile`). It knows no class, no configuration
and no global state: its inputs, outputs, scratch arrays and random keys are arguments. It is
compiled once for each type of its arguments, so callers pass contiguous arrays of one integer type,
and a `Pattern` where values have no part in it.

Its reference, ``torch_`` and its name, is the readable definition in torch, with which tests and
``python -m slide.check`` compare it, and with which other devices compute (`slide.ops.table`).
References neither copy to the host nor wait for the device: all sizes follow from the shapes of the
arguments. Where the number of results depends on the data, there is room for the most that there
may be, and a mark or a count tells which results are real.
"""

from slide.ops.csr import CSRMatrix as CSRMatrix
from slide.ops.hashing import dwta_dense as dwta_dense
from slide.ops.hashing import dwta_runners as dwta_runners
from slide.ops.hashing import dwta_sparse as dwta_sparse
from slide.ops.hashing import fold as fold
from slide.ops.hashing import pack_signs as pack_signs
from slide.ops.hashing import probe_codes as probe_codes
from slide.ops.hashing import project_sparse as project_sparse
from slide.ops.layers import is_channels_last as is_channels_last
from slide.ops.layers import put_channels as put_channels
from slide.ops.layers import relu_dropout_backward as relu_dropout_backward
from slide.ops.layers import relu_dropout_forward as relu_dropout_forward
from slide.ops.losses import clear_samples as clear_samples
from slide.ops.losses import linear_loss as linear_loss
from slide.ops.losses import loss_rows as loss_rows
from slide.ops.products import entry_products as entry_products
from slide.ops.products import exact as exact
from slide.ops.products import group_columns as group_columns
from slide.ops.products import nonzeros as nonzeros
from slide.ops.products import row_gradient as row_gradient
from slide.ops.products import rows_to_visit as rows_to_visit
from slide.ops.products import sampled_product as sampled_product
from slide.ops.products import weighted_sum as weighted_sum
from slide.ops.table import OPERATIONS as OPERATIONS
