"""`python -m evermind_web`: see `evermind_web.cli`, which the distribution evermind-web-desktop brings."""

import sys
from importlib.util import find_spec

if find_spec("evermind_web.cli") is None:
    sys.exit("evermind_web: the command line is not installed; pip install 'evermind-web[cli]'")

from evermind_web.cli import main

sys.exit(main())
