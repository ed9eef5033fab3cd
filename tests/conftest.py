"""What every test may ask for."""

import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from pdp.opa.program import OPA_VERSION, find_opa, opa_version
from tests.support import be_patient

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # What runs in a shell's background ignores interrupts, and hands that on to the programs that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)

be_patient()
# How long an example takes says something about the machine.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture(scope="session")
def opa() -> Path:
    """The OPA program of the pinned version. Without it tests fail, rather than be passed over in silence."""
    program = find_opa()
    if program is None or opa_version(program) != OPA_VERSION:
        pytest.fail(f"OPA {OPA_VERSION} is not there: run `scripts/opa`, and set PDP_OPA if another one is on PATH")
    return program
