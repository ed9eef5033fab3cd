"""The token for an OPA that runs already, from the environment."""

from __future__ import annotations

import os
import re
from typing import Final

from pdp.errors import UsageError

# A bearer token as RFC 6750 writes it.
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")


def opa_token() -> str | None:
    """Return the token in `PDP_OPA_TOKEN`; None when it is not set or empty.

    Raises:
        UsageError: it has characters that a bearer token must not have. They are not shown.
    """
    token = os.environ.get("PDP_OPA_TOKEN") or None
    if token is not None and not _TOKEN.fullmatch(token):
        raise UsageError(
            "PDP_OPA_TOKEN: it has characters that a bearer token must not have",
            hint="letters, digits and -._~+/ with = at its end; look for blanks, line feeds and quotes",
        )
    return token
