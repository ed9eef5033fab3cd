"""What is wrong in one file: findings of rules and of pydantic models, as faults with places and in plain words."""

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
# pydantic's kinds of errors in our words; what stands in braces comes from the error's context.
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
    "string_too_long": "must have at most {max_length} characters",
    "too_long": "must have at most {max_length} items",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
}

# As APIs of models spell it; the nearest word would be another.
_SYNONYMS: Final = dict.fromkeys(("parameters", "input_schema", "inputSchema"), "schema")


class FieldError(ValueError):
    """A field's value is wrong, as in "must be a duration": validators of models raise it."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return a hint that names the known word nearest to `name`, whatever its case, or None when none is near."""
    words = sorted(known)
    matches = get_close_matches(name, words, n=1)
    if not matches:
        lower = {word.lower(): word for word in words}
        matches = [lower[word] for word in get_close_matches(name.lower(), lower, n=1)]
    return f"did you mean `{matches[0]}`?" if matches else None


def looks_like(name: str, known: Iterable[str]) -> bool:
    """Whether a name is likely one of the known ones, misspelt: `clearence`, `role` for `roles`."""
    return bool(get_close_matches(name, list(known), 1, 0.8))


def known_keys(model: type[BaseModel], path: Path) -> frozenset[str]:
    """Return the keys that `model` admits in the mapping at `path`; none where any key is admitted."""
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
                current = [inner for spec in fields for inner in _models_in(spec.annotation)]
    return frozenset(spec.alias or name for parent in current for name, spec in parent.model_fields.items())


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models_in(argument)]


def read_record(file: pathlib.Path, model: type[Model]) -> Model:
    """Return what a file holds; its folder is the context. UsageError, FileFaultsError: every fault, and its place."""
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
    """Return one fault for each thing that `model` found wrong in a value of the document.

    The value stands at `base` in the document; `where` gives the path in the document for one in the value, when that
    was reshaped before. Tags of discriminated unions must be written `<…>`; they are no part of the file.
    """
    faults: list[Fault] = []
    for detail in error.errors(include_url=False):
        # pydantic marks the key of a mapping by `[key]`, and the chosen part of a union by its tag.
        path = tuple(step for step in detail["loc"] if not (isinstance(step, str) and _MARK.fullmatch(step)))
        is_key = detail["loc"][-1:] == ("[key]",)
        name = str(path[-1]) if path else ""
        if detail["type"] == "extra_forbidden":
            is_key, known = True, known_keys(model, path[:-1])
            synonym = _SYNONYMS.get(name)
            hint = f"did you mean `{synonym}`?" if synonym in known else nearest(name, known)
            message = f"unknown key {shown_name(name)}"
            if name in known:
                message, hint = f"{shown_name(name)} is there in another spelling too", "keep one"
            hint = hint or f"known here: {', '.join(sorted(known))}"
        else:
            if detail["type"] == "missing" and name not in known_keys(model, path[:-1]):
                path = (*path[:-1], to_snake(name))  # what is missing is named by an alias, if it has one
            described, hint = _described(detail)
            # Of the whole file, only its own type is wrong; all else says itself what it is about.
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
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    hint = "write it in quotes" if kind == "string_type" and is_number else None
    return words.format(**context) + _contrast(given), hint


def _contrast(value: Any) -> str:
    if isinstance(value, dict):
        return ", not a mapping"
    if isinstance(value, list | tuple):
        return ", not a list"
    if value is None or isinstance(value, bool):
        return f", not {str(value).lower() if value is not None else 'null'}"
    return f", not {shown_name(value)}"


FROM_FILE: Final = {"from_file": True}
"""The validation context of what a file states: there, null is not absent."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong at one path of a file.

    `key`: the key at the end of the path is meant, not its value. `warning`: legal, yet likely a mistake. `rule`: the
    kind of finding, where others ask for it; a governance file accepts some kinds (`accepts`).
    """

    path: Path
    message: str
    hint: str | None = None
    warning: bool = False
    key: bool = False
    rule: str | None = None


class FaultyFile:
    """One file that is being loaded: its document, and the faults and warnings found so far.

    UsageError: the file cannot be read. FileFaultsError: its value is not a mapping, or cannot be read to its end.
    """

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
        """Add findings; `where` gives the path in the document for a finding's path."""
        self._add(
            self.document.fault(
                where(finding.path), finding.message, finding.hint, key=finding.key, warning=finding.warning
            )
            for finding in findings
        )

    def read(
        self, model: type[Model], value: Any, where: Callable[[Path], Path], stand_ins: Mapping[str, Any] | None = None
    ) -> tuple[Model | None, frozenset[str]]:
        """Return as much of a record as is valid, so that its rules can still be checked, and its faulty fields.

        `where` gives the path in the document for a path in the record; `stand_ins` stand for required fields that are
        faulty or absent. The record is None when nothing is left of it.
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
        """Add what a model found wrong."""
        self._add(faults_of(error, self.document, model, where=where))

    def _add(self, faults: Iterable[Fault]) -> None:
        for fault in faults:
            place = (fault.place.line, fault.place.column)
            # What could not be read has its fault; a second one would only say what stands in for it.
            if place in self._unread or (*place, fault.message) in self._seen:
                continue
            self._seen.add((*place, fault.message))
            self.faults.append(fault)
