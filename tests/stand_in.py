"""The program that launchers start in tests instead of ``python -m proxdasa``: see `tests.forks`."""

import sys

from tests.forks import stand_in

if __name__ == "__main__":
    sys.exit(stand_in(sys.argv[1:]))
