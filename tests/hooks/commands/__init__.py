"""Tests of shell commands: their parser, and their shapes in commands.yaml."""
