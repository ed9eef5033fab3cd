"""Faults of one file, found by pydantic models and by rules, with locations and plain messages."""

import pathlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic.alias_generators import to_snake
from pydantic_core import ErrorDetails

from pdp.documents.document import Document, Path, shown_name
from pdp.documents.parse import read_document
from pdp.errors import Fault, FileFaultsError

Model = TypeVar("Model", bound=BaseModel)

_QUOTED = re.compile(r"'([^']*)'")
_MARK = re.compile(r"\[key\]|<.*>", re.DOTALL)

_NO_MAPPING = ("dict_type", "model_type", "model_attributes_type")
_EMPTY = ("string_too_short", "too_short")
# Messages for pydantic's error types. Names in braces are replaced from the error's context.
_WORDS = {
    "string_type": "must be a string",
    **dict.fromkeys(("int_type", "int_from_float"), "must be a whole number"),
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "none_required": "must be null",
    **dict.fromkeys(("tuple_type", "list_type", "frozen_set_type"), "must be a list"),
    **dict.fromkeys(_NO_MAPPING, "must be a mapping"),
    "missing": "is missing",
    **dict.fromkeys(_EMPTY, "must not be empty"),
    "string_pattern_mismatch": "must have the form {pattern}",
    "string_too_long": "must have at most {max_length} characters",
    "too_long": "must have at most {max_length} items",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
}

# Model APIs use these names for `schema`. Without this entry, the hint would suggest a wrong key.
_SYNONYMS: Final = dict.fromkeys(("parameters", "input_schema", "inputSchema"), "schema")


class FieldError(ValueError):
    """The error of a model's field validator. Its message says what the value must be, such as "must be a duration"."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return a hint "did you mean ..." with the most similar word, ignoring case, or None if no word is similar."""
    words = sorted(known)
    matches = get_close_matches(name, words, n=1)
    if not matches:
        lower = {word.lower(): word for word in words}
        matches = [lower[word] for word in get_close_matches(name.lower(), lower, n=1)]
    return f"did you mean `{matches[0]}`?" if matches else None


def looks_like(name: str, known: Iterable[str]) -> bool:
    """Return whether a name is probably a known name with a typing error, such as `clearence` or `role` for `roles`."""
    return bool(get_close_matches(name, list(known), 1, 0.8))


def known_keys(model: type[BaseModel], path: Path) -> frozenset[str]:
    """Return the keys that a model allows in the mapping at `path`. An empty set means that any key is allowed."""
    current: list[type[BaseModel]] = [model]
    for step in path:
        if isinstance(step, str):
            fields = [
                spec
                for parent in current
                for name, spec in parent.model_fields.items()
                if step in (spec.validation_alias, spec.alias or name)
            ]
            if fields:
                current = [inner for spec in fields for inner in models_in(spec.annotation)]
    return frozenset(spec.alias or name for parent in current for name, spec in parent.model_fields.items())


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the models in a type annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in models_in(argument)]


def read_record(file: pathlib.Path, model: type[Model]) -> Model:
    """Read a file as a `model`, with the file's folder as validation context. Raise its faults as `FileFaultsError`."""
    document = read_document(file)
    try:
        return model.model_validate(document.value, context=file.parent)
    except ValidationError as error:
        raise FileFaultsError(faults_of(error, document, model)) from None


def faults_of(
    error: ValidationError,
    document: Document,
    model: type[BaseModel],
    *,
    base: Path = (),
    where: Callable[[Path], Path] | None = None,
) -> list[Fault]:
    """Return a fault for each validation error. `where` maps a path in the validated value to a path in the document.

    Models must write the tags of discriminated unions as `<...>`, so that paths can leave them out.
    """
    faults: list[Fault] = []
    for detail in error.errors(include_url=False):
        # pydantic also reports a list as too short if all its items are faulty.
        if detail["type"] == "too_short" and detail["input"]:
            continue
        # pydantic appends `[key]` to the path of a mapping's key, and the selected member's tag to the path of a union.
        path = tuple(step for step in detail["loc"] if not (isinstance(step, str) and _MARK.fullmatch(step)))
        is_key = detail["loc"][-1:] == ("[key]",)
        name = str(path[-1]) if path else ""
        if detail["type"] == "extra_forbidden":
            is_key, known = True, known_keys(model, path[:-1])
            synonym = _SYNONYMS.get(name)
            hint = f"did you mean `{synonym}`?" if synonym in known else nearest(name, known)
            message = f"unknown key {shown_name(name)}"
            if name in known:
                message, hint = f"{shown_name(name)} is also set under another name", "remove one of them"
            hint = hint or f"known keys: {', '.join(sorted(known))}"
        else:
            if detail["type"] == "missing" and name not in known_keys(model, path[:-1]):
                path = (*path[:-1], to_snake(name))  # pydantic reports a missing field by its alias.
            described, hint = _described(detail)
            # Only the fault of a whole file has no path, so its message needs a subject. Other messages name the path.
            file = "the file " if detail["type"] in _NO_MAPPING and not (path or base or where) else ""
            message = f"{f'key {shown_name(name)} ' if is_key else file or _label(path)}{described}"
        faults.append(document.fault(base + (where(path) if where else path), message, hint, key=is_key))
    return faults


def _label(path: Path) -> str:
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return f"{shown_name(text)} " if text else ""


def _described(detail: ErrorDetails) -> tuple[str, str | None]:
    kind, given, context = detail["type"], detail["input"], detail.get("ctx", {})
    if kind in ("literal_error", "enum"):
        options = _QUOTED.findall(str(context["expected"]))
        hint = nearest(given, options) if isinstance(given, str) else None
        return f"must be one of {', '.join(options)}{_contrast(given)}", hint
    if kind == "value_error":
        cause = context.get("error")
        contrast = _contrast(given) if str(cause).startswith("must be") else ""
        return f"{cause}{contrast}", getattr(cause, "hint", None)
    words = _WORDS.get(kind)
    if words is None:
        return f"is not valid: {detail['msg']}", None
    if kind in ("missing", *_EMPTY):
        return words, None
    return words.format(**context) + _contrast(given), _hint(words, given)


def _hint(words: str, given: Any) -> str | None:
    """Return what to write instead of a value of the wrong type, or None if that is not clear."""
    if words == _WORDS["string_type"]:
        is_number = isinstance(given, int | float) and not isinstance(given, bool)
        return "write it in quotes" if is_number else None
    if words == _WORDS["list_type"]:
        return "write it in square brackets" if isinstance(given, str) else None
    if words == _WORDS["bool_type"]:
        return "remove the quotes" if given in ("true", "false") else None
    return None


def _contrast(value: Any) -> str:
    if isinstance(value, dict):
        return ", not a mapping"
    if isinstance(value, list | tuple):
        return ", not a list"
    if value is None or isinstance(value, bool):
        return f", not {str(value).lower() if value is not None else 'null'}"
    return f", not {shown_name(value)}"


FROM_FILE: Final = {"from_file": True}
"""The validation context for values from a file, in which null does not mean that a field is absent."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem of the value at `path` (with `key`, of its key). A governance file can accept some, by their `rule`."""

    path: Path
    message: str
    hint: str | None = None
    warning: bool = False
    key: bool = False
    rule: str | None = None


class FaultyFile:
    """A file that collects its faults. Raises `UsageError` or `FileFaultsError` if reading or parsing fails."""

    def __init__(self, path: pathlib.Path | str, text: bytes | None, kind: str) -> None:
        self.faults: list[Fault] = []
        self.document = read_document(path, text=text, faults=self.faults)
        if not isinstance(self.document.value, dict):
            self.faults.append(
                self.document.fault((), f"a {kind} must be a mapping", "check that it is the right file")
            )
            raise FileFaultsError(self.faults)
        self._unread = {(fault.place.line, fault.place.column) for fault in self.faults}
        self._seen: set[tuple[int, int, str]] = set()

    def add_findings(self, findings: Iterable[Finding], where: Callable[[Path], Path] = lambda path: path) -> None:
        """Add findings as faults of the file. `where` maps the path of a finding to a path in the file."""
        self._add(
            self.document.fault(
                where(finding.path), finding.message, finding.hint, key=finding.key, warning=finding.warning
            )
            for finding in findings
        )

    def read(
        self, model: type[Model], value: Any, where: Callable[[Path], Path], stand_ins: Mapping[str, Any] | None = None
    ) -> tuple[Model | None, frozenset[str]]:
        """Return the valid part of a record, or None, and the names of its faulty or absent fields.

        `stand_ins` replace required fields that are faulty or absent, so that rules can still check the other fields.
        """
        try:
            return model.model_validate(value, context=FROM_FILE), frozenset()
        except ValidationError as error:
            self.add_error(error, model, where)
            faulty = {str(detail["loc"][0]) for detail in error.errors(include_url=False) if detail["loc"]}
        if not isinstance(value, dict):
            return None, frozenset()
        left = {name: part for name, part in value.items() if name not in faulty}
        absent = {name: part for name, part in (stand_ins or {}).items() if name not in left}
        unusable = frozenset(to_snake(name) for name in (*faulty, *absent))
        try:
            return model.model_validate({**left, **absent}, context=FROM_FILE), unusable
        except ValidationError:
            return None, unusable

    def add_error(self, error: ValidationError, model: type[BaseModel], where: Callable[[Path], Path]) -> None:
        """Add a model's validation errors as faults of the file."""
        self._add(faults_of(error, self.document, model, where=where))

    def _add(self, faults: Iterable[Fault]) -> None:
        for fault in faults:
            place = (fault.place.line, fault.place.column)
            # A value that could not be parsed already has a fault. A second fault would describe the default that
            # replaces the value.
            if place in self._unread or (*place, fault.message) in self._seen:
                continue
            self._seen.add((*place, fault.message))
            self.faults.append(fault)
