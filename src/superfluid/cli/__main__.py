"""``python -m superfluid.cli``: the same as ``superfluid``."""

import sys

from superfluid.cli.main import main

sys.exit(main())
