"""Alive, ready, and the record of events."""

from __future__ import annotations

from fastapi import APIRouter

router = APIRouter()
