"""``python -m proxdasa``."""

from proxdasa.cli import main

main()
