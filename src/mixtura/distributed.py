"""One model of the rows of many processes: `Shard` stands for X in each of them."""

from mixtura.data.sharded import Shard

__all__ = ["Shard"]
