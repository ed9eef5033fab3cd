"""Tests of expressions in manifest fields."""
