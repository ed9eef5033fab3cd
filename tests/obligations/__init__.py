"""Tests of `pdp.obligations`."""
