"""Schemas and documents that are not of this project's own files."""
