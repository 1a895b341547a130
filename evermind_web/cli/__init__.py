"""The command line: train, generate, personalize, bench, inspect, convert. The work is done by the rest of the package.

Exit codes: 0 done, or stopped with Ctrl-C and saved; 1 an error, one line on stderr; 2 wrong usage; 130 interrupted
with nothing to save.
"""

from evermind_web.cli.entry import main as main
