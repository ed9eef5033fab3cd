"""The AuthZEN endpoints, and their metadata."""

from __future__ import annotations

from fastapi import APIRouter

router = APIRouter()
