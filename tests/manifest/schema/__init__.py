"""Tests of JSON Schemas of tools."""
