"""Fixtures and settings for all tests."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from pdp.opa.program import OPA_VERSION, find_opa, opa_version
from tests.support import be_patient

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts background programs with SIGINT ignored. Restore the handler, because some tests interrupt child
    # processes.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests start hundreds of Python programs. Without byte code, each program compiles 250 modules, which takes 0.5 s.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
be_patient()
# No deadline for an example of hypothesis, because its duration depends on the machine.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture(scope="session")
def opa() -> Path:
    """Return the path of OPA in the pinned version. If this OPA is missing, tests are not skipped but fail."""
    program = find_opa()
    if program is None or opa_version(program) != OPA_VERSION:
        pytest.fail(f"OPA {OPA_VERSION} is not there: run `scripts/opa`, and set PDP_OPA if another one is on PATH")
    return program
