"""Tests of `pdp scan` and `pdp manifest import` with each type of source."""
