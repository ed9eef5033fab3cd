"""Run scenarios on an engine.

runner        run the selected scenarios of a file on one engine, or on both engines and compare their decisions
scenario_run  run one scenario step by step
world         the recorded systems of a scenario; records what its tools read and write
expectation   compare the expected and the actual result of a step
diagnosis     explain why a scenario failed
engines       open the engine of a suite, and record its answers
"""
