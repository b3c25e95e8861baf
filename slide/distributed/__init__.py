"""Training on several processes: rows of features and labels are shared out among them."""

from slide.distributed.data_parallel import ShardedSampledLinear as ShardedSampledLinear
from slide.distributed.group import Group as Group
from slide.distributed.input_linear import ShardedInputLinear as ShardedInputLinear
from slide.distributed.network import ShardedNetwork as ShardedNetwork
from slide.distributed.output_linear import ShardedOutputLinear as ShardedOutputLinear
from slide.distributed.shares import Shares as Shares
