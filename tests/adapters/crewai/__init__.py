"""Sets variables that CrewAI reads when it is imported, and hides warnings that come from CrewAI's own code."""

import os
import warnings

os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true", "CREWAI_TESTING": "true"}
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import crewai  # noqa: F401 - imported with these settings
