"""The hot arithmetic: one folder per op, each with its definition in plain torch.

What is true here: an op is called by its wrapper, which checks dtype, layout, device and size; the
dispatcher picks the version that serves, and no caller ever tests a device. The definition in
plain torch serves everywhere; a faster version may only override it, bit for bit.
"""

from narrowgate.ops._checks import is_dense
from narrowgate.ops._library import OpStatus, status, why_plain
from narrowgate.ops._limits import largest_master
from narrowgate.ops.adamw_step import adamw_step
from narrowgate.ops.grad_stats import grad_stats
from narrowgate.ops.half_checksum import half_checksum
from narrowgate.ops.join_master import join_master
from narrowgate.ops.sgd_step import sgd_step
from narrowgate.ops.split_master import split_master

__all__ = [
    "OpStatus",
    "adamw_step",
    "grad_stats",
    "half_checksum",
    "is_dense",
    "join_master",
    "largest_master",
    "sgd_step",
    "split_master",
    "status",
    "why_plain",
]
