"""Tests of calls near a known call."""
