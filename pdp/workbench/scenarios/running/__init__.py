"""Scenarios run on an engine.

runner        the scenarios of a file that are selected, on one engine or both, which have to agree
scenario_run  one scenario, step by step
world         the recorded systems of a scenario, and what its tools touch
expectation   what is expected of a step, held against what happened
diagnosis     why a scenario failed
engines       the engine of a suite, and the one that records
"""
