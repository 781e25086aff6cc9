"""`python -m tapejit`: the command line."""

import sys

from .tracer.tools.cli import main

sys.exit(main())
