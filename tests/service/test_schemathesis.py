"""Schemathesis generates valid and invalid requests from the OpenAPI document. Every answer must match the document."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from pdp.service.openapi import openapi_document
from tests.support.service import RunningService, running_service

pytestmark = pytest.mark.process

EXAMPLES = int(os.environ.get("PDP_SCHEMATHESIS", "4"))
"""Number of requests per endpoint. An environment variable can raise it."""

Case = schemathesis.Case[Any]

# The event stream is excluded, because its answer does not end.
schema = schemathesis.openapi.from_dict(openapi_document()).exclude(path="/v1/approvals/events")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    limits = {"requests_per_second": 1e6, "burst": 1_000_000, "wait_seconds": 0}
    with running_service(tmp_path_factory.mktemp("service"), limits=limits) as service:
        yield service
        assert "Traceback" not in service.log.read_text()


@pytest.fixture(scope="module")
def token(running: RunningService) -> str:
    return running.token()


# A request that matches its schema may still name an unknown tool, so the test accepts that such requests are rejected.
@schema.parametrize()
@settings(max_examples=EXAMPLES, derandomize=True)
def test_answers_match_the_openapi_document(case: Case, running: RunningService, token: str) -> None:
    case.call_and_validate(
        base_url=running.url, headers={"Authorization": f"Bearer {token}"}, excluded_checks=[positive_data_acceptance]
    )


@schema.parametrize()
@settings(max_examples=1, derandomize=True)
def test_answers_without_a_token_match_the_openapi_document(case: Case, running: RunningService) -> None:
    case.call_and_validate(base_url=running.url, excluded_checks=[positive_data_acceptance])
