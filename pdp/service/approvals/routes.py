"""Approvals over HTTP: list, show and wait, grant, deny, withdraw."""

from __future__ import annotations

from fastapi import APIRouter

router = APIRouter()
