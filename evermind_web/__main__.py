"""`python -m evermind_web`: see `evermind_web.cli`."""

import sys

from evermind_web.cli import main

sys.exit(main())
