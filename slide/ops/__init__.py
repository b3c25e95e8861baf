"""Each operation as numba kernel and as torch reference, in one file, and the table that picks.

A kernel knows no global state, and is compiled for each type of its arguments. A reference neither
copies to the host nor waits for a device: where data decide on sizes, marks tell what is real.
"""

from slide.ops.csr import CSRMatrix as CSRMatrix
from slide.ops.dispatch import OPERATIONS as OPERATIONS
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
from slide.ops.products import nonzero_entries as nonzero_entries
from slide.ops.products import nonzeros as nonzeros
from slide.ops.products import row_gradient as row_gradient
from slide.ops.products import rows_to_visit as rows_to_visit
from slide.ops.products import sampled_product as sampled_product
from slide.ops.products import weighted_sum as weighted_sum
