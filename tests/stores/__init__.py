"""Tests of `pdp.stores`."""
