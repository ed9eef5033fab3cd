"""Tests of the rules for manifests."""
