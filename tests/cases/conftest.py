"""Each file of tests leaves plain torch behind."""

from cases.tools import plain_torch_again as plain_torch_again
from cases.tools import plain_torch_where_it_is_shown as plain_torch_where_it_is_shown
