"""`pdp scan` and `pdp manifest import`, on each kind of source."""
