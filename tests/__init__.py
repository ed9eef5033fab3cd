"""Tests: one file a module, each test one behaviour."""
