"""Planning policy: rules about which tools a plan has together, how often, and in which order.

They are facts about the plan and not about any tool (tool contract document, "The honest close"), so they are declared
apart from manifests: in the policy's data, `directory.planning`, where `authz/plan` reads them. This module gives them
types, and finds what is wrong with them before a plan is ever decided.
"""

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictInt, ValidationError, model_validator

from pdp.documents import FieldError, faults_of, nearest, read_document, shown_name
from pdp.errors import FileFaultsError, UsageError
from pdp.manifest.fields import Name, Term, Text

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Collection

_FORMS = "write one of `requires: [...]`, `tool` with `at_most`, `tool` with `only_after: [...]`"


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PlanningRule(_Record):
    """One rule of exactly one form.

    Attributes:
        rule: its text, for people.
        purposes: for which purposes it holds; None: for any. A plan that states no purpose is held to it too.
        requires: tools that are all in the plan.
        tool, at_most: so many calls of the tool at most.
        tool, only_after: no call of the tool before one of each of these.
    """

    rule: Text | None = None
    purposes: Annotated[tuple[Term, ...], Field(min_length=1)] | None = None
    requires: Annotated[tuple[Name, ...], Field(min_length=1)] | None = None
    tool: Name | None = None
    at_most: Annotated[StrictInt, Field(ge=0, le=1000)] | None = None
    only_after: Annotated[tuple[Name, ...], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _of_one_form(self) -> "PlanningRule":
        stated = {name for name in ("requires", "tool", "at_most", "only_after") if getattr(self, name) is not None}
        if stated not in ({"requires"}, {"tool", "at_most"}, {"tool", "only_after"}):
            raise FieldError("is not a planning rule", _FORMS)
        return self

    @property
    def tools(self) -> tuple[str, ...]:
        """The tools that it names."""
        return (*((self.tool,) if self.tool else ()), *(self.requires or ()), *(self.only_after or ()))


class PlanningPolicy(_Record):
    """The planning rules of one application, by their ids."""

    rules: dict[Name, PlanningRule]

    def as_data(self) -> dict[str, Any]:
        """Return it as data of the policy: `{"directory": {"planning": {ID: rule}}}`."""
        return {"directory": {"planning": self.model_dump(mode="json", exclude_none=True)["rules"]}}

    def check_tools(self, known: "Collection[str]") -> None:
        """Check that every tool that a rule names is known: a rule about a misspelt one would hold for nothing.

        Raises:
            UsageError: one is not; the first, by the rules' order.
        """
        for name, rule in self.rules.items():
            for tool in rule.tools:
                if tool not in known:
                    raise UsageError(
                        f"planning rule {shown_name(name)}: {shown_name(tool)} is not a tool of the manifest",
                        hint=nearest(tool, known) or "name a tool as the manifest does",
                    )


class _Directory(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)

    planning: dict[Name, PlanningRule]


class _DataFile(BaseModel):
    """A data file of the policy; of its other members this module says nothing."""

    model_config = ConfigDict(extra="allow", frozen=True)

    directory: _Directory


def load_planning(path: "pathlib.Path | str", *, text: bytes | None = None) -> PlanningPolicy:
    """Load the planning policy of a data file, `{directory: {planning: {ID: rule}}}`.

    Args:
        path: the file, YAML or JSON.
        text: its content, when it has been read already.

    Raises:
        UsageError: the file cannot be read.
        FileFaultsError: it is faulty; every fault with its place.
    """
    faults: list[Any] = []
    document = read_document(path, text=text, faults=faults)
    if faults:
        raise FileFaultsError(faults)
    try:
        return PlanningPolicy(rules=_DataFile.model_validate(document.value).directory.planning)
    except ValidationError as error:
        raise FileFaultsError(faults_of(error, document, _DataFile)) from None
