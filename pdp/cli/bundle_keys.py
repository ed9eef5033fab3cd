"""Keys as commands are given them: in files, or in the environment."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pdp.engine.bundle.keys import KEYS_VARIABLE, load_public_keys, public_keys
from pdp.errors import UsageError
from pdp.workbench.bundles.keys import SIGNING_VARIABLE, load_signing_key, signing_key

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pdp.engine.bundle.keys import VerificationKey
    from pdp.workbench.bundles.keys import SigningKey


def given_signing_key(path: Path | None) -> SigningKey | None:
    """Return the private key in a file, or in PDP_SIGNING_KEY when no file is named; None when there is neither.

    Raises:
        UsageError: it cannot be used.
    """
    if path is not None:
        return load_signing_key(path)
    text = os.environ.get(SIGNING_VARIABLE)
    return signing_key(text, f"the variable {SIGNING_VARIABLE}") if text else None


def given_public_keys(paths: Sequence[Path]) -> tuple[VerificationKey, ...] | None:
    """Return the public keys in files, or in PDP_VERIFICATION_KEYS when none is named; None when there is neither.

    Raises:
        UsageError: they cannot be used.
    """
    if paths:
        return load_public_keys(paths)
    text = os.environ.get(KEYS_VARIABLE)
    return public_keys(text, f"the variable {KEYS_VARIABLE}") if text else None


def needed_public_keys(paths: Sequence[Path]) -> tuple[VerificationKey, ...]:
    """Return the public keys as `given_public_keys` does.

    Raises:
        UsageError: there are none, or they cannot be used.
    """
    found = given_public_keys(paths)
    if found is None:
        raise UsageError(
            "no public key to verify with", hint=f"name one with --key, or give it in the variable {KEYS_VARIABLE}"
        )
    return found
