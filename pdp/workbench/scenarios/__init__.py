"""Scenarios: calls, and the decisions that the policy is expected to make on them.

files             a folder: read and check scenario files
running           a folder: run scenarios on an engine, and compare each step with its expectation
reports           a folder: report a run as text, JSON, JUnit XML and HTML
results           the results of a run, which reports, coverage and mutation use
draft             draft a project for an existing manifest
pytest_plugin     the settings of the pytest plugin, which is active only if one of them is set
pytest_scenarios  the pytest plugin: scenarios as tests, and fixtures
"""
