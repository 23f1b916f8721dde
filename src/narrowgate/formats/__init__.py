"""What numbers are: format records, derived limits, and an exact scalar rounding oracle.

Nothing here imports torch or NumPy. Which range and which rounding a format has is decided here
and nowhere else.
"""

from narrowgate.formats.registry import ALIASES, FORMATS, get
from narrowgate.formats.rounding import Rounding, encode, quantum, round_value
from narrowgate.formats.spec import Format, NanCodes, codes, decode

__all__ = [
    "ALIASES",
    "FORMATS",
    "Format",
    "NanCodes",
    "Rounding",
    "codes",
    "decode",
    "encode",
    "get",
    "quantum",
    "round_value",
]
