"""`python -m tapejit`: the command line."""

import sys

from .tracer.cli import main

sys.exit(main())
