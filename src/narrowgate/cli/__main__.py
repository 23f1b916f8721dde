"""``python -m narrowgate.cli``: the command, where its script is not on the PATH."""

import sys

from narrowgate.cli import main

sys.exit(main())
