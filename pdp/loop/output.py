"""What a model has to answer at the end of a loop: JSON of a schema.

Source: tool layer document (specialized loop: tools first, then structured output without tools).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pdp.errors import PdpError, UsageError
from pdp.json import JsonValueError, parse_json

if TYPE_CHECKING:
    from pdp.loop.agent_loop import Finished
    from pdp.loop.messages import Message

_SHOWN = 200


class OutputInvalidError(PdpError):
    """No answer of the model was JSON of the schema. `messages` is what was said."""

    code: ClassVar[str] = "loop.output_invalid"

    def __init__(self, faults: str, messages: tuple[Message, ...]) -> None:
        super().__init__(f"the model's answer does not keep to the schema: {faults}")
        self.messages = messages


@dataclass(frozen=True, slots=True)
class Output:
    """What the model answered, as JSON, and the loop that led there."""

    value: Any
    finished: Finished


class OutputSchema:
    """The schema of an answer, draft 2020-12.

    Raises:
        UsageError: it is no schema.
    """

    def __init__(self, document: dict[str, Any]) -> None:
        import jsonschema_rs  # noqa: PLC0415 - not needed to import the package

        self.document = document
        try:
            self._validator = jsonschema_rs.Draft202012Validator(document)
        except (ValueError, jsonschema_rs.ValidationError) as error:
            raise UsageError(
                f"schema: {str(error).splitlines()[0]}", hint="the answer's JSON Schema, draft 2020-12"
            ) from None

    def read(self, text: str) -> tuple[Any, str]:
        """Return what `text` says, and what is wrong with it: the empty string where nothing is."""
        try:
            value = parse_json(text)
        except JsonValueError as error:
            return None, str(error)
        for fault in self._validator.iter_errors(value):
            at = "/".join(str(step) for step in fault.instance_path)
            return None, f"{at or 'the whole'}: {fault.message:.{_SHOWN}}"
        return value, ""
