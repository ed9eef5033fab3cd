"""Fixtures and settings for all tests."""

import gc
import os
import signal
import sys
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
# OPA runs hundreds of times as well, each time too briefly for collecting garbage to be worth it.
os.environ.setdefault("GOGC", "800")
# A dependency of jsonschema parses a grammar when it is imported, which takes 2 s. No test needs its formats.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]
# Half of the time of collecting the tests would go into searching their million objects for garbage.
gc.disable()
be_patient()
# No deadline for an example of hypothesis, because its duration depends on the machine.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


def pytest_collection_finish() -> None:
    """Search for garbage from now on, but not in what was collected: modules and tests stay until the end."""
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    gc.enable()


@pytest.fixture(scope="session")
def opa() -> Path:
    """Return the path of OPA in the pinned version. If this OPA is missing, tests are not skipped but fail."""
    program = find_opa()
    if program is None or opa_version(program) != OPA_VERSION:
        pytest.fail(f"OPA {OPA_VERSION} is not there: run `scripts/opa`, and set PDP_OPA if another one is on PATH")
    return program
