"""`python -m wirelake`: the command line."""

from wirelake.cli import main

main()
