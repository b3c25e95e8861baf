"""Operations with manual gradients: a backward pass leaves those of rows on the weight.

There `slide.RowSparseAdam` takes them. With ``sparse_grad=True`` the gradient of the weight goes
through autograd as a ``torch.sparse_coo`` tensor, for optimizers of PyTorch that take such ones.
"""

from slide.functional.convolution import active_conv2d as active_conv2d
from slide.functional.dropout import drop_features as drop_features
from slide.functional.dropout import relu_dropout as relu_dropout
from slide.functional.linear import active_linear as active_linear
from slide.functional.linear import active_linear_loss as active_linear_loss
from slide.functional.linear import gather_active as gather_active
from slide.functional.linear import scatter_active as scatter_active
from slide.functional.losses import loss_on_active as loss_on_active
from slide.functional.sparse_linear import csr_matmul as csr_matmul
from slide.functional.sparse_linear import sparse_linear as sparse_linear
from slide.ops.csr import CSRMatrix as CSRMatrix
