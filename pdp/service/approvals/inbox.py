"""Server-sent events: what happens to approvals, ids only."""

from __future__ import annotations

from fastapi import APIRouter

router = APIRouter()
