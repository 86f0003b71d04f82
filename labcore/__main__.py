"""`python3 -m labcore`: the same commands as `labcore`, from a bare clone. Starts on Python 3.8."""

import sys

from labcore.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
