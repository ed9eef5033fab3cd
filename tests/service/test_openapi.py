"""The OpenAPI document says what the application serves."""

from __future__ import annotations

from fastapi.routing import iter_route_contexts

from pdp.service.app import create_app
from pdp.service.openapi import openapi_document
from pdp.service.settings import ServiceSettings, TenantSettings
from tests.support.payments import EXAMPLE


def test_the_document_names_every_route() -> None:
    app = create_app(
        ServiceSettings(tenants={"default": TenantSettings(project=EXAMPLE / "pdp.yaml", store="sqlite://")})
    )
    served = {
        (route.path, method.lower())
        for route in iter_route_contexts(app.routes)
        for method in (route.methods or set()) - {"HEAD"}
    }
    named = {(path, method) for path, methods in openapi_document()["paths"].items() for method in methods}
    assert served - named == set()
