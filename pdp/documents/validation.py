"""What a pydantic model finds wrong in a document, as faults with places and in plain words."""

import pathlib
import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any, Final, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic.alias_generators import to_snake
from pydantic_core import ErrorDetails

from pdp.documents.document import Document, Path, shown_name
from pdp.documents.parse import read_document
from pdp.errors import Fault, FileFaultsError

_Model = TypeVar("_Model", bound=BaseModel)

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


def read_record(file: pathlib.Path, model: type[_Model]) -> _Model:
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
