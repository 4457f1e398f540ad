"""`python -m maxtrain` is the console script."""

import sys

from maxtrain.cli import main

if __name__ == "__main__":
    sys.exit(main())
