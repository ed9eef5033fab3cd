"""Calls of remote enforcement points: begun, finished, planned."""

from __future__ import annotations

from fastapi import APIRouter

router = APIRouter()
