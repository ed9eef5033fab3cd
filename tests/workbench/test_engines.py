"""Policy engines are opened by name."""

from contextlib import ExitStack

import pytest

from pdp.decision import Verdict
from pdp.engine.bundle.file import baseline_bundle_path, read_bundle
from pdp.engine.protocol import ENGINES, EngineName
from pdp.errors import UsageError
from pdp.project.resources import open_engine
from pdp.workbench.engines import engines_named


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.opa) for name in ENGINES])
@pytest.mark.usefixtures("opa")
def test_each_engine_name_opens_its_engine(name: EngineName) -> None:
    with ExitStack() as owned:
        engine = open_engine(name, read_bundle(baseline_bundle_path()), owned, manifests={})
        assert (engine.name, engine.decide_body(b"{}").verdict) == (name, Verdict.DENY)


def test_engine_name_selects_one_engine_or_both() -> None:
    assert [engines_named(name) for name in (*ENGINES, "both")] == [
        ("embedded",),
        ("sidecar",),
        ("embedded", "sidecar"),
    ]
    with pytest.raises(UsageError, match=r"^unknown engine 'fast' "):
        engines_named("fast")
