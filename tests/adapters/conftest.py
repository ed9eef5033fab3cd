"""Frameworks that are not installed here: their tests run in environments of their own, by `scripts/adapters`."""

from pathlib import Path

from tests.adapters.targets import ADAPTERS, is_installed

collect_ignore = [str(Path(__file__).parent / name) for name in ADAPTERS if not is_installed(name)]
