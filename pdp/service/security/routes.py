"""Access tokens and browser sessions over HTTP."""

from __future__ import annotations

from fastapi import APIRouter

router = APIRouter()
