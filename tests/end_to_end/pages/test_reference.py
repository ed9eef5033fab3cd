"""Every field has a text with a valid example, and the generated reference has a page or an entry for everything."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml
from pydantic import BaseModel, TypeAdapter

from pdp.audit.chain import AuditEvent
from pdp.cli.schemas import field_texts, schema_of
from pdp.documents.validation import models_in
from pdp.hooks.shapes import PLACEHOLDERS
from pdp.manifest.model import Governance, Manifest
from pdp.project.file import Project
from pdp.service.openapi import openapi_document
from pdp.service.settings import ServiceSettings
from pdp.session import Session
from pdp.workbench.codes import codes
from pdp.workbench.scenarios.files.scenario import Scenario, ScenarioSettings
from scripts import prose
from scripts.reference import fields
from scripts.reference.__main__ import main
from scripts.reference.commands import commands
from tests.support import ROOT

ROOTS = (Manifest, Governance, Project, Session, ScenarioSettings, Scenario, ServiceSettings)
TEXTS = field_texts()
DATA = ROOT / "docs/reference"


def models(*roots: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """Return all models that occur in these models, by name, with the base classes of the package."""
    found: dict[str, type[BaseModel]] = {}
    waiting = list(roots)
    for model in waiting:
        if model.__name__ not in found:
            found[model.__name__] = model
            waiting += [inner for field in model.model_fields.values() for inner in models_in(field.annotation)]
    return found


def stated(model: type[BaseModel], field: str) -> str | None:
    """Return the key of a field's text: that of the model or of a base class."""
    return next((key for base in model.__mro__ if (key := f"{base.__name__}.{field}") in TEXTS), None)


def described() -> Iterator[tuple[str, str | None, Any]]:
    """Yield each field as `Model.field`, with the key of its text and the field itself."""
    for name, model in models(*ROOTS).items():
        for field_name, field in model.model_fields.items():
            written = field.alias or field_name
            yield f"{name}.{written}", stated(model, written), field


def test_every_field_has_a_text_and_every_text_a_field() -> None:
    found = list(described())
    assert [name for name, key, _ in found if key is None] == []
    names = {base.__name__ for model in models(*ROOTS).values() for base in model.__mro__}
    # Files may define schemas beside the fields of the model.
    assert TEXTS.keys() - {key for _, key, _ in found} - names == {"Manifest.$defs"}
    assert models(*ROOTS).keys() - TEXTS.keys() == set()


def test_texts_are_at_most_three_short_sentences() -> None:
    for key, text in TEXTS.items():
        sentences = re.split(r"(?<=[.;:])\s+", text["says"])
        assert text["says"].endswith("."), key
        assert len(re.findall(r"\.(?=\s|$)", text["says"])) <= 3, key
        assert max(len(sentence.split()) for sentence in sentences) <= 25, key


def test_example_of_every_field_is_valid() -> None:
    """Validators of a whole model are left out, because an example shows one field."""
    for _, key, field in described():
        if key not in (None, "Manifest.ontology"):  # the loader reads the file that this example names
            kind: Any = Annotated[field.annotation, None, *field.metadata]
            TypeAdapter(kind).validate_python(TEXTS[key]["example"])
    assert [key for _, key, _ in described() if key and "example" not in TEXTS[key]] == []


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("reference")
    main([str(folder)])
    return {str(file.relative_to(folder)): file.read_text() for file in sorted(folder.rglob("*.md"))}


def test_every_page_of_the_index_is_generated(pages: dict[str, str]) -> None:
    index = (DATA / "index.md").read_text()
    assert set(re.findall(r"\]\((.+?)\)", index)) - pages.keys() == set()


def test_every_command_code_endpoint_and_file_field_is_described(pages: dict[str, str]) -> None:
    assert [path for path, _ in commands() if f"# {path}\n" not in pages["commands.md"]] == []
    assert [code.code for code in codes() if f"codes/{code.code}.md" not in pages] == []
    assert [code.code for code in codes() if f"(codes/{code.code}.md)" not in pages["codes.md"]] == []
    endpoints = [f"{method.upper()} {path}" for path, parts in openapi_document()["paths"].items() for method in parts]
    assert [endpoint for endpoint in endpoints if f"### {endpoint}\n" not in pages["http-api.md"]] == []
    for kind in fields.FILES:
        for name, model in fields.models_of(schema_of(kind)).items():
            assert f"## {fields.in_words(name)}\n" in pages[f"{kind}.md"]
            assert [field for field in model["properties"] if f"| `{field}` |" not in pages[f"{kind}.md"]] == []


def test_data_files_describe_every_field_of_requests_events_and_commands() -> None:
    request, event, language = (
        yaml.safe_load((DATA / f"{name}.yaml").read_text()) for name in ("request", "audit-event", "commands-yaml")
    )
    schema = yaml.safe_load((ROOT / "policies/schemas/request.json").read_text())
    assert request["fields"].keys() == {path for path, _ in fields.request_fields(schema, schema)}
    assert event["fields"].keys() == {*AuditEvent.__annotations__, "seq", "prev_hash", "hash"}
    assert language["placeholders"].keys() == PLACEHOLDERS.keys()


def test_generated_pages_are_plain_english_with_links_that_exist(pages: dict[str, str], tmp_path: Path) -> None:
    marked: list[str] = []
    for name, text in pages.items():
        (file := tmp_path / "page.md").write_text(text)
        found = [each for each in prose._sentences(file, name) if len(each.words.split()) >= prose._WORDS]
        # A quote of a specification document keeps its words.
        marked += [str(each) for each in found if prose.mark_of(each.words) and "“" not in each.words]
        marked += prose.page_faults(file, name)
        for link in re.findall(r"\]\(([^)#:]+\.md)(?:#[^)]*)?\)", text):
            target = str(Path("/") / Path(name).parent / link).removeprefix("/")
            assert target in pages, f"{name}: {link}"
    assert marked == []
