"""`python -m timedrun`."""

import sys

from timedrun.cli import main

if __name__ == "__main__":
    sys.exit(main())
