"""Tests of `pdp.ledger`."""
