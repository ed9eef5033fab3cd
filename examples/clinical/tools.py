"""The medical engine's tools, with a few fixed findings instead of a retrieval model."""

from typing import Any

FINDINGS = {
    "guidelines": {"id": "ev-1", "text": "Metformin is the first choice in type 2 diabetes."},
    "web": {"id": "ev-2", "text": "Metformin is stopped before contrast media when the eGFR is below 30."},
}


def retrieve_evidence(
    query: str,
    subquestion_id: str | None = None,
    subquestion_ids: list[str] | None = None,
    *,
    web_search: bool | None = None,
    search_mode: str = "guidelines",
    patient_context: str | None = None,
) -> dict[str, Any]:
    """Return evidence. `search_mode` comes from the tool's config, and `patient_context` from the state."""
    sources = [search_mode, *(["web"] if web_search else [])]
    asked = subquestion_ids or [subquestion_id or "whole"]
    about = f" ({patient_context})" if patient_context else ""
    evidence = [
        {**FINDINGS.get(source, FINDINGS["guidelines"]), "subquestion": one} for one in asked for source in sources
    ]
    return {"evidence": evidence, "last_query": query + about}


def link_sources(evidence_ids: list[str]) -> dict[str, Any]:
    """Return a link for each piece of evidence."""
    return {"links": {one: f"https://evidence.example/{one}" for one in evidence_ids}}
