"""Tests of `pdp.audit`."""
