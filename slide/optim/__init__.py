"""An Adam that updates only the rows that a step touched, gradient clipping, and resizing.

Optimizer and clipping use the row gradients that the layers of slide leave on their weights
(`slide.row_gradients`).
"""

from slide.optim.clipping import clip_grad_norm_ as clip_grad_norm_
from slide.optim.row_sparse_adam import RowSparseAdam as RowSparseAdam
from slide.optim.row_sparse_adam import resize_rows as resize_rows
