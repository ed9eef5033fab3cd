"""Tests of schemas from other drafts of JSON Schema, which are translated to draft 2020-12."""
