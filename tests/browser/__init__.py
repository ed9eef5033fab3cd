"""Tests of the console's pages in a real headless Chromium, against a real service."""
