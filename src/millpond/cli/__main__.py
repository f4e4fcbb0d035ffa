"""`python -m millpond.cli`: the command line if `millpond` isn't on PATH."""

from millpond.cli import main

main()
