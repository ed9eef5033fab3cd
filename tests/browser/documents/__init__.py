"""Tests of the documentation in a real browser: its pictures, and the search of its site."""
