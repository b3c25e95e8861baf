"""Modules for PyTorch models: layers with sampled outputs, their losses, and a whole network."""

from slide.functional.losses import ActiveLoss as ActiveLoss
from slide.functional.losses import hardest as hardest
from slide.nn.network import SlideNetwork as SlideNetwork
from slide.nn.network import TorchTwin as TorchTwin
from slide.nn.resizing import add_features as add_features
from slide.nn.resizing import add_outputs as add_outputs
from slide.nn.resizing import remove_outputs as remove_outputs
from slide.nn.sampled_conv2d import SampledConv2d as SampledConv2d
from slide.nn.sampled_linear import Activation as Activation
from slide.nn.sampled_linear import EveryOutput as EveryOutput
from slide.nn.sampled_linear import SampledLinear as SampledLinear
from slide.nn.sampled_linear import ToDense as ToDense
from slide.nn.sparse_linear import SparseInputLinear as SparseInputLinear
from slide.nn.sparse_linear import SparseWeightLinear as SparseWeightLinear
