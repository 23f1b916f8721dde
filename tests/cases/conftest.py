"""Each test of a fault leaves plain torch behind."""

from cases.tools import plain_torch_again as plain_torch_again
