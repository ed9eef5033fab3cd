"""Tests of `pdp.approvals`."""
