"""Tests of the generator of calls that are similar to a given call."""
