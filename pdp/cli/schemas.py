"""JSON Schemas of the files that users write, made from the models that read them.

The files `pdp/documents/fields/*.yaml` have texts and examples: `Model.field: {says: TEXT, example: VALUE}`, and
`Model` for the model itself. Subclasses inherit the texts of a base class. `spellings.yaml` has what loaders accept
beyond the models.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args

import yaml
from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import models_json_schema

from pdp.documents.validation import models_in
from pdp.installed import extra
from pdp.manifest.model import NULLABLE, Governance, Manifest, Record
from pdp.project.file import Project
from pdp.session import Session
from pdp.workbench.scenarios.files.scenario import Scenario, ScenarioSettings, Step
from pdp.workbench.scenarios.files.suite import laid_over

_ROOTS: Final[Mapping[str, tuple[type[BaseModel], ...]]] = {
    "manifest": (Manifest,), "governance": (Governance,), "project": (Project,), "session": (Session,),
    "scenarios": (ScenarioSettings, Scenario, Step, Session),
}  # fmt: skip
Kind = Literal["manifest", "governance", "project", "scenarios", "session", "service"]
KINDS: Final = get_args(Kind)
_FIELDS: Final = Path(__file__).parents[1] / "documents" / "fields"
_SPELLINGS: Final = Path(__file__).parent / "spellings.yaml"
_NULL: Final = {"type": "null"}


def schema_of(kind: str) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a kind of file. Each model is in `$defs`, under its class name.

    The schema accepts each key that the loader accepts: in manifest and governance file, this includes camelCase names
    and the short forms of the tool registry. Raises `MissingExtraError` if the service is not installed.
    """
    roots = _service() if kind == "service" else _ROOTS[kind]
    definitions: dict[str, Any] = models_json_schema([(root, "validation") for root in roots])[1]["$defs"]
    models = _models(roots)
    definitions |= {name: _as_written(definitions[name], model) for name, model in models.items()}
    definitions = laid_over(definitions, yaml.safe_load(_SPELLINGS.read_text(encoding="utf-8")).get(kind, {}))
    _describe(definitions, models)
    root: dict[str, Any] = {"$ref": f"#/$defs/{roots[0].__name__}"}
    if kind == "scenarios":  # A scenario with one step may have the step's fields itself.
        own = definitions["Scenario"]["properties"]
        definitions["Scenario"]["properties"] = {**definitions["Step"]["properties"], **own}
    elif kind == "manifest":  # A file may also have a single record of a tool registry, without `tools`.
        tool, around = definitions["DeclaredTool"], definitions["Manifest"]["properties"]
        properties = {name: part for name, part in around.items() if name != "tools"} | tool["properties"]
        definitions["RegistryRecord"] = {**tool, "properties": properties}
        several = {"anyOf": [{"required": ["tools"]}, {"not": _any_of("id", "name")}]}
        root = {"if": several, "then": root, "else": {"$ref": "#/$defs/RegistryRecord"}}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"{kind} of tool-pdp"}
    return {**head, **root, "$defs": definitions}


def _service() -> tuple[type[BaseModel]]:
    with extra("service"):
        from pdp.service.settings import ServiceSettings  # noqa: PLC0415 - needs the extra
    return (ServiceSettings,)


def _models(roots: tuple[type[BaseModel], ...]) -> dict[str, type[BaseModel]]:
    found: dict[str, type[BaseModel]] = {}
    rest = list(roots)
    for model in rest:
        if found.setdefault(model.__name__, model) is model:
            inner = (part for field in model.model_fields.values() for part in models_in(field.annotation))
            rest += (part for part in inner if part.__name__ not in found)
    return found


def _as_written(schema: dict[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    """Return a model's schema with the names of fields as in files. Other spellings become `patternProperties`."""
    parts: dict[str, Any] = {"properties": {}, "patternProperties": {}, "required": [], "allOf": []}
    for name, field in model.model_fields.items():
        written = field.alias or name
        alias = str(field.validation_alias or written)
        part = {key: value for key, value in schema["properties"][alias].items() if key not in ("title", "default")}
        if not part and field.annotation is not Any:
            part = TypeAdapter(cast("Any", field.annotation)).json_schema()  # A validator hides the type.
        if field.default is not None and "default" in schema["properties"][alias]:
            part["default"] = schema["properties"][alias]["default"]
        if issubclass(model, Record) and name not in NULLABLE and _NULL in part.get("anyOf", ()):
            options = [option for option in part.pop("anyOf") if option != _NULL]
            part |= options[0] if len(options) == 1 else {"anyOf": options}
        parts["properties"][written] = part
        if alias != written:
            parts["patternProperties"][f"^{alias}$"] = {"$ref": f"#/$defs/{model.__name__}/properties/{written}"}
        if field.is_required():
            key, need = ("required", written) if alias == written else ("allOf", _any_of(written, alias))
            parts[key].append(need)
    return {name: part for name, part in (schema | parts).items() if part or name not in parts}


def _any_of(*names: str) -> dict[str, Any]:
    return {"anyOf": [{"required": [name]} for name in names]}


def _describe(definitions: dict[str, Any], models: Mapping[str, type[BaseModel]]) -> None:
    """Add texts and examples. Without a text, a model has the first paragraph of its docstring."""
    texts = field_texts()
    for name, model in models.items():
        definition = definitions[name]
        summary = definition.get("description", "").partition("\n\n")[0]
        definition["description"] = texts.get(name, {}).get("says", summary)
        for field, part in definition["properties"].items():
            text = next((texts[key] for of in model.__mro__ if (key := f"{of.__name__}.{field}") in texts), {})
            part.update({"description": text["says"]} if "says" in text else {})
            part.update({"examples": [text["example"]]} if "example" in text else {})


@cache
def field_texts() -> dict[str, dict[str, Any]]:
    """Return the texts and examples of models and fields."""
    files = sorted(_FIELDS.glob("*.yaml"))
    return {name: text for file in files for name, text in yaml.safe_load(file.read_text(encoding="utf-8")).items()}
