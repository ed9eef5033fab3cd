"""What a subject's model may see; the manifest."""

from __future__ import annotations

from fastapi import APIRouter

router = APIRouter()
