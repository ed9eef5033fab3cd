"""Tests of the pages in docs/ and the README: their commands run and print the documented output."""
