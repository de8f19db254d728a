"""The program that launchers and pytest-xdist start in tests instead of Python: see `tests.forks`."""

import sys
from pathlib import Path

if __name__ == "__main__":
    if not __package__:  # started by its path
        sys.path[0] = str(Path(__file__).parents[1])
    from tests.forks import stand_in

    sys.exit(stand_in(sys.argv[1:]))
