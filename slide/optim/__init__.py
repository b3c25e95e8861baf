"""Row-sparse Adam, and clipping of gradients that come as rows."""

from slide.optim.clipping import clip_grad_norm_ as clip_grad_norm_
from slide.optim.row_sparse_adam import RowSparseAdam as RowSparseAdam
