"""What several tests share: projects, servers, generated requests, scripted models."""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
"""The repository."""
