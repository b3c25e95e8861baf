"""An Adam that updates only the rows that a step touched, gradient clipping, and resizing."""

from slide.optim.clipping import clip_grad_norm_ as clip_grad_norm_
from slide.optim.row_sparse_adam import RowSparseAdam as RowSparseAdam
from slide.optim.row_sparse_adam import resize_rows as resize_rows
