"""`python -m pdp` is `pdp`."""

from pdp.cli import main

main()
