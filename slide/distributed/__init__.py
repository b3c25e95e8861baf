"""Training on several processes: rows of features and labels are shared out among them."""

from slide.distributed.group import Group as Group
from slide.distributed.sharded_layers import ShardedInputLinear as ShardedInputLinear
from slide.distributed.sharded_layers import ShardedOutputLinear as ShardedOutputLinear
from slide.distributed.sharded_layers import ShardedSampledLinear as ShardedSampledLinear
from slide.distributed.sharded_network import ShardedNetwork as ShardedNetwork
from slide.distributed.shares import Shares as Shares
