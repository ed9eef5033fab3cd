"""Tests of `pdp.stores.sql`."""
