"""What every test may ask for."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from pdp.workbench.opa.program import OPA_VERSION, find_opa

if TYPE_CHECKING:
    from pathlib import Path

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # What runs in a shell's background ignores interrupts, and hands that on to the programs that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def opa() -> Path:
    """The OPA program of the pinned version. Without it tests fail, rather than be passed over in silence."""
    program = find_opa()
    if program is None:
        pytest.fail(f"OPA {OPA_VERSION} is not there: run `pdp opa install`")
    return program
