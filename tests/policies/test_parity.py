"""Both engines return the same bytes for the scenarios of the example and for thousands of generated requests."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from pdp.contract.checks import Checked
from pdp.contract.compiled import CompiledManifest
from pdp.contract.request import check
from pdp.decision import Decision, parse_findings
from pdp.engine.bundle.file import Bundle, pack_bundle, read_bundle
from pdp.engine.data import merged_data
from pdp.engine.opa.engine import SidecarEngine
from pdp.engine.protocol import FINDINGS
from pdp.engine.wasm.engine import EmbeddedEngine
from pdp.json import canonical
from pdp.manifest.effective import effective_manifest
from pdp.manifest.load import load_manifest
from pdp.opa.local import local_opa
from pdp.proposal import Proposal, RejectionCode
from tests.support import payments
from tests.support.generated_requests import DIGEST, SOURCES, directory, manifests, requests
from tests.support.servers.opa import KINDS, opa_server

pytestmark = pytest.mark.opa

GENERATED = 4000
FEWER = 150


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    released = read_bundle(payments.BUNDLE)
    data = merged_data(released.data, manifests=manifests(), data={"directory": directory()})
    file = tmp_path_factory.mktemp("parity") / "bundle.tar.gz"
    file.write_bytes(pack_bundle(release=7, wasm=released.wasm, data=data, modules=released.modules))
    return file


@pytest.fixture(scope="module")
def bundle(packed: Path) -> Bundle:
    return read_bundle(packed)


@pytest.fixture(scope="module")
def embedded(bundle: Bundle) -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine(bundle) as engine:
        yield engine


@pytest.fixture(scope="module", params=["url", *KINDS])
def sidecar(packed: Path, opa: Path, request: pytest.FixtureRequest) -> Iterator[SidecarEngine]:
    """A sidecar engine. It asks OPA at a Unix socket, or through opa-python-client in a process or a container."""
    if request.param != "url":
        with (
            opa_server(request.param, "--bundle", "{folder}/bundle.tar.gz", folder=packed.parent) as client,
            SidecarEngine(client=client) as engine,
        ):
            yield engine
        return
    with (
        local_opa(opa, bundle=read_bundle(packed)) as local,
        SidecarEngine(local.url, token=local.token) as engine,
    ):
        yield engine


def whole(decision: Decision) -> bytes:
    """Return a decision as JSON, without its id, which differs in each decision."""
    return canonical({name: value for name, value in decision.as_json().items() if name != "decision_id"})


def test_engines_agree_on_generated_requests(
    embedded: EmbeddedEngine, sidecar: SidecarEngine, bundle: Bundle, request: pytest.FixtureRequest
) -> None:
    """All requests are sent through a socket. Other ways to the same OPA are tried with fewer requests."""
    is_whole = request.node.callspec.params["sidecar"] == "url"
    seen: Counter[str] = Counter()
    for request_body in requests(GENERATED if is_whole else FEWER):
        # OPA treats null as a missing input, so the engines decide differently. No call sends null.
        if request_body is None:
            continue
        body = canonical(request_body)
        ours, theirs = embedded.decide_body(body), sidecar.decide_body(body)

        assert whole(ours) == whole(theirs), body
        assert ours.bundle_revision == bundle.revision, body
        fired, fired_there = (parse_findings(engine.evaluate(body, FINDINGS)) for engine in (embedded, sidecar))
        assert fired == fired_there, body
        seen.update([ours.verdict, *ours.codes, *(f"obligation {obligation.id}" for obligation in ours.obligations)])

    # The comparison must include rare verdicts and codes, so each verdict and each code must occur often.
    if not is_whole:
        return
    assert min(seen[verdict] for verdict in ("ALLOW", "STEP_UP", "DENY")) >= 100
    assert {code for code, times in seen.items() if times >= 5} >= {
        "approvals.invalid", "approvals.required", "decision.nothing_allows", "decision.request_invalid",
        "delegation.exceeds_agent", "documents.not_entitled", "effects.gate_satisfied", "effects.pattern_mismatch",
        "effects.unknown", "flow.address_composed", "flow.aimless", "flow.destructive", "flow.egress",
        "flow.link_untrusted", "flow.not_anchored", "flow.off_plan", "flow.target_untrusted", "flow.unknown",
        "flow.value_untrusted", "idempotency.key_missing",
        "limits.exceeded", "limits.invalid", "manifest.mismatch", "manifest.not_pinned", "manifest.not_released",
        "manifest.unknown_action",
        "markings.not_allowed", "markings.not_cleared", "markings.unreadable", "obligation draft_only",
        "obligation mark_result", "obligation note", "obligation pin_retrieval_snapshot",
        "provenance.missing", "purposes.missing", "purposes.not_allowed", "risk.acceptable", "scopes.missing",
    }  # fmt: skip


ASKED_FOR = "high_None_3"
"""A tool of the generated manifests whose argument `sources` is required as provenance."""


@pytest.fixture(scope="module")
def saving() -> CompiledManifest:
    """A manifest with two tools: `save_null` requires that `sources` is null, and `save` that `sources` is not null."""
    types = {"save": ["array", "string", "number", "object", "boolean"], "save_null": ["null"]}
    tools = [
        {
            "name": name,
            "description": "Save",
            "version": "1.0.0",
            "schema": {"type": "object", "properties": {"sources": {"type": taken}}},
            "provenance": {"required": ["sources"]},
        }
        for name, taken in types.items()
    ]
    text = orjson.dumps({"manifest_version": "1", "tools": tools})
    return CompiledManifest(effective_manifest(load_manifest("manifest.json", manifest_text=text)))


def _named_before_the_policy(manifest: CompiledManifest, sources: Any) -> bool:
    tool = "save_null" if sources is None else "save"
    proposal = Proposal.read({"tool": tool, "arguments": {"sources": sources}})
    found = check(proposal, payments.session(), manifest)
    return isinstance(found, Checked) or (
        found.rejection is not None and found.rejection.code is not RejectionCode.MISSING_PROVENANCE
    )


# Unicode white space, and characters that look like white space or count as white space in some languages.
SPACES = [*range(33), 0x7F, *range(0x80, 0xA2), 0xAD, 0x1680, 0x180E, *range(0x2000, 0x2010), *range(0x2028, 0x2030)]
SPACES += [0x205F, 0x2060, 0x3000, 0xFEFF]


def test_engines_and_contract_checks_agree_on_which_values_name_a_source(
    saving: CompiledManifest, embedded: EmbeddedEngine, sidecar: SidecarEngine
) -> None:
    taken: Counter[bool] = Counter()
    for sources in (*SOURCES, *map(chr, SPACES), *([" ", chr(space)] for space in SPACES)):
        body = canonical(
            {
                "subject": {"type": "user", "id": "u", "properties": {"scopes": ["c"]}},
                "action": {
                    "name": "shared",
                    "properties": {"tool": ASKED_FOR, "manifest_version": "1", "manifest_digest": DIGEST},
                },
                "resource": {"type": "t", "id": "r", "properties": {"markings": []}},
                "context": {"arguments": {"sources": sources}},
            }
        )
        expected = _named_before_the_policy(saving, sources)

        assert ("provenance.missing" not in embedded.decide_body(body).codes) is expected, sources
        assert ("provenance.missing" not in sidecar.decide_body(body).codes) is expected, sources
        taken[expected] += 1
    assert min(taken[True], taken[False]) >= 10


def test_engines_agree_on_worked_examples(embedded: EmbeddedEngine, sidecar: SidecarEngine) -> None:
    for request in _worked_examples():
        assert whole(embedded.decide(request)) == whole(sidecar.decide(request))


def _worked_examples() -> Iterator[Any]:
    from pdp.pep import Pep
    from pdp.request import Entity, Request, RequestedAction

    with payments.engine() as engine:
        pep = Pep(payments.effective(), engine)
        for amount in (0, 20000, 25000, 25000.01, 47500):
            asked = pep.decide(payments.wire(amount=amount), payments.session()).request
            assert asked is not None
            yield Request(
                Entity(**asked["subject"]),
                RequestedAction(**asked["action"]),
                Entity(**asked["resource"]),
                asked["context"],
            )
