"""Scenarios: what a policy is expected to decide, and what it decides.

files             a folder: scenario files read and checked
running           a folder: scenarios run on an engine, each step held against its expectation
reports           a folder: a run as text, JSON, JUnit's XML and a page
results           a run as plain records, which reports, coverage and mutation read
draft             a project drafted for a manifest that exists
pytest_plugin     the settings of the pytest plugin; nothing else until one is stated
pytest_scenarios  the pytest plugin: scenarios as items, and fixtures
"""
