"""`python -m millpond.cli`: the command line where no `millpond` is on PATH."""

from millpond.cli import main

main()
