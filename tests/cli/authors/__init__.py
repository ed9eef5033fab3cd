"""Tests of the commands for policy authors: scenarios, explanations, schemas, reports."""
