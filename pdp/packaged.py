"""Where the files are that come with the package: in the wheel beside the code, in a checkout at its root."""

from __future__ import annotations

from pathlib import Path


def packaged(name: str) -> Path | None:
    """Return the path of a folder or file, such as `policies`, or None when it is in neither place."""
    package = Path(__file__).resolve().parent
    return next((path for path in (package / "data" / name, package.parent / name) if path.exists()), None)
