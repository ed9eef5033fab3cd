"""Tests of proofs about changed policies: the translation against the engine, and traps of Rego."""
