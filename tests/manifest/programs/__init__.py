"""Tests of pdp.manifest.programs."""
