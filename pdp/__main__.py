"""Run the command line with `python -m pdp`."""

from pdp.cli import main

main()
