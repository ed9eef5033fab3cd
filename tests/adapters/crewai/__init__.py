"""CrewAI looks at the environment as it is imported, and warns of itself."""

import os
import warnings

os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true", "CREWAI_TESTING": "true"}
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import crewai  # noqa: F401 - so that it is
