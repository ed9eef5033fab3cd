"""Tests of the command line with faulty files of every format."""
