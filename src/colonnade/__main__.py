"""``python -m colonnade`` is the same as ``colonnade``."""

from colonnade.cli.main import main

main()
