"""Tests of the labels of results and arguments: faults about trust, and warnings about likely mistakes."""

import json
from typing import Any

import pytest

from pdp.errors import Fault, FileFaultsError
from pdp.manifest.load import load_effective

TEXT = {"type": "string"}
CODE = {"type": "string", "pattern": "^[A-Z]{2}[0-9]{4}$"}
MAIL: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": CODE, "date": {"type": "string", "format": "date"}, "size": {"type": "integer"},
        "state": {"enum": ["new", "read"]}, "seen": {"type": ["boolean", "null"]}, "title": TEXT,
        "sender": {"type": "object", "properties": {"address": {"type": "string", "format": "email"}, "name": TEXT}},
    },
}  # fmt: skip
ARGUMENTS = {"to": {"type": "string", "description": "Who."}, "about": {"type": "string", "description": "What."}}
UNBOUNDED = (
    "limit texts by `enum`, `const`, `pattern` or `format`, lists by `items`, and objects by `additionalProperties: "
    "false` or `propertyNames`; or remove the label"
)

ADDRESSED = "state a `pattern` that excludes mail addresses and links of other domains"


def entry(**fields: Any) -> dict[str, Any]:
    base = {
        "name": "send_mail", "description": "Send a mail.", "effect_class": "read-internal", "scopes": ["mail"],
        "schema": {"type": "object", "properties": ARGUMENTS}, "result_schema": {"type": "array", "items": MAIL},
        "roles": {},
    }  # fmt: skip
    return {name: value for name, value in {**base, **fields}.items() if value is not None}


def load(*tools: dict[str, Any], **governance: Any) -> tuple[list[str], list[str]]:
    """Load a manifest and return its faults and its warnings, each as `file value: message | hint`."""
    texts = {
        "manifest_text": json.dumps({"manifest_version": "1", "tools": list(tools)}).encode(),
        "governance_text": json.dumps(governance).encode(),
    }
    warnings: list[Fault] = []
    faults: list[Fault] = []
    try:
        load_effective("manifest", "governance", warnings=warnings, **texts)  # type: ignore[arg-type]
    except FileFaultsError as error:
        faults = list(error.faults)
    others = [
        warning
        for warning in warnings
        if not warning.message.endswith("has effects and no `writes: proposal`, no `provenance`")
    ]
    return ([shown(fault, texts) for fault in faults], [shown(fault, texts) for fault in others])


def shown(fault: Fault, texts: dict[str, bytes]) -> str:
    """Return a fault as text: the file, the value at its location, the message and the hint."""
    text = texts[f"{fault.place.file}_text"].decode()[fault.place.column - 1 :]
    value, _ = json.JSONDecoder().raw_decode(text)
    return f"{fault.place.file} {json.dumps(value)}: {fault.message}" + (f" | {fault.hint}" if fault.hint else "")


def labelled(**labels: Any) -> dict[str, Any]:
    return entry(result=labels)


@pytest.mark.parametrize("path", ["/id", "/date", "/size", "/state", "/seen"])
@pytest.mark.parametrize("field", ["trusted", "created"])
def test_result_field_that_the_schema_limits_can_be_trusted(field: str, path: str) -> None:
    assert load(labelled(**{field: [path]})) == ([], [])


@pytest.mark.parametrize(
    "schema",
    [
        {"format": "email"},
        {"format": "uri"},
        {"pattern": r"^\S{3,40}$"},
        {"pattern": "^[A-Z0-9@.]{9,40}$"},
        {"pattern": "^[a-z@.]{31}$"},
        {"pattern": "^[a-z./]+$", "maxLength": 20},
        {"pattern": "^https://[a-z.]+/x$"},
    ],
)
def test_result_field_labelled_created_that_may_be_any_address_is_a_fault(schema: dict[str, Any]) -> None:
    faults, _ = load(entry(result={"created": [""]}, result_schema={"type": "string", **schema}))

    assert faults == [f"""manifest "": `created` includes the result, which may be any address | {ADDRESSED}"""]
    assert load(entry(result={"trusted": [""]}, result_schema={"type": "string", **schema})) == ([], [])


@pytest.mark.parametrize(
    "schema",
    [
        {"format": "uuid"},
        {"pattern": r"^[\w.:-]{1,40}$"},
        {"pattern": r"^\S+$", "format": "uuid"},
        {"pattern": "^[a-z]{1,20}@own\\.example$"},
        {"pattern": "^https://own\\.example/[a-z]{1,20}$"},
        {"pattern": "^[a-z@.]+$", "maxLength": 9},
    ],
)
def test_result_field_labelled_created_may_be_an_id_or_an_address_of_one_domain(schema: dict[str, Any]) -> None:
    assert load(entry(result={"created": [""]}, result_schema={"type": "string", **schema})) == ([], [])


@pytest.mark.parametrize(
    ("labels", "schema", "place", "at"),
    [
        ({"trusted": ["/title"]}, None, "/title", "/title"),
        ({"created": ["/id", "/title"]}, None, "/title", "/title"),
        ({"trusted": [""]}, None, "", "the result"),
        ({"integrity": "trusted", "names": [""]}, TEXT, "trusted", "the result"),
        ({"integrity": "trusted"}, None, "trusted", "the result"),
        ({"trusted": ["/sender"]}, None, "/sender", "/sender"),
        ({"trusted": ["/sender/*"]}, None, "/sender/*", "/sender/*"),
        ({"trusted": ["/unnamed"]}, None, "/unnamed", "/unnamed"),
        ({"integrity": "trusted"}, TEXT, "trusted", "the result"),
        ({"integrity": "trusted"}, {"type": "string", "pattern": ".*"}, "trusted", "the result"),
        ({"integrity": "trusted"}, {"type": "string", "pattern": "[0-9]+"}, "trusted", "the result"),
        ({"integrity": "trusted"}, {"type": "string", "pattern": "^[a-z ]{1,40}$"}, "trusted", "the result"),
        ({"integrity": "trusted"}, {"type": "string", "maxLength": 20}, "trusted", "the result"),
        ({"integrity": "trusted"}, {"type": ["integer", "string"]}, "trusted", "the result"),
        ({"integrity": "trusted"}, {"type": "array"}, "trusted", "the result"),
        ({"integrity": "trusted"}, {"type": "array", "prefixItems": [CODE]}, "trusted", "the result"),
        ({"integrity": "trusted"}, {"type": "array", "items": {"type": "array", "items": TEXT}}, "trusted",
         "the result"),
        ({"integrity": "trusted"}, {"anyOf": [{"type": "object", "additionalProperties": CODE}, TEXT]}, "trusted",
         "the result"),
        ({"integrity": "trusted"}, {"type": "object", "additionalProperties": TEXT, "propertyNames": CODE}, "trusted",
         "/*"),
        ({"integrity": "trusted"}, {"type": "object", "additionalProperties": {"type": "number"}}, "trusted",
         "the result"),
        ({"integrity": "trusted"},
         {"type": "object", "additionalProperties": {"type": "number"}, "propertyNames": {"anyOf": [CODE, TEXT]}},
         "trusted",
         "the result"),
        ({"integrity": "trusted", "parties": ["/a/b"]},
         {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": TEXT, "c": TEXT},
          "additionalProperties": False}}, "additionalProperties": False}, "trusted", "/a/c"),
        ({"integrity": "trusted"},
         {"type": "object", "properties": {"a": CODE}, "if": {"properties": {"a": {"const": "AA0000"}}},
          "then": {"properties": {"b": TEXT}}, "unevaluatedProperties": False}, "trusted", "/b"),
    ],
)  # fmt: skip
def test_result_text_of_unlimited_length_cannot_be_labelled_trusted(
    labels: dict[str, Any], schema: dict[str, Any] | None, place: str, at: str
) -> None:
    field = next(name for name in ("trusted", "created", "integrity") if name in labels)
    faults, _ = load(entry(result=labels, **({"result_schema": schema} if schema else {})))

    where = f"`{at}`" if at.startswith("/") else at
    assert faults == [
        f'manifest "{place}": `{field}` includes {where}, which the result schema does not limit | {UNBOUNDED}'
    ]


@pytest.mark.parametrize(
    ("labels", "schema"),
    [
        ({"integrity": "trusted"}, CODE),
        ({"integrity": "trusted"}, {"type": "array", "items": {"anyOf": [CODE, {"type": "null"}]}}),
        ({"integrity": "trusted"}, {"type": "object", "properties": {"a": CODE}, "additionalProperties": False}),
        ({"integrity": "trusted"},
         {"type": "object", "additionalProperties": {"type": "number"}, "propertyNames": CODE}),
        ({"trusted": ["/*"]},
         {"type": "object", "patternProperties": {"^x": CODE}, "propertyNames": {"enum": ["x", "xx"]},
          "additionalProperties": False}),
        ({"trusted": ["/*"]}, {"type": "object", "additionalProperties": {"type": "number"}}),
        ({"trusted": ["/*/id"]},
         {"type": "object", "additionalProperties": {"type": "object", "properties": {"id": CODE}}}),
        ({"integrity": "trusted", "parties": ["/owner", "/*/name"]},
         {"type": "array", "items": {"type": "object", "properties": {"owner": TEXT}, "propertyNames": CODE,
          "additionalProperties":
          {"type": "object", "properties": {"name": TEXT, "id": CODE}, "additionalProperties": False}}}),
        ({"integrity": "trusted"},
         {"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "properties": {
             "id": CODE, "below": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
             "additionalProperties": False}}}),
        ({"trusted": ["/a~1b/c~0d"]},
         {"type": "object", "properties": {"a/b": {"type": "object", "properties": {"c~d": CODE}}}}),
        ({"integrity": "untrusted"}, None),
        ({"parties": ["/sender"], "names": ["/title"], "markings": ["mail"]}, None),
    ],
)  # fmt: skip
def test_labels_that_match_the_result_schema_are_accepted(
    labels: dict[str, Any], schema: dict[str, Any] | None
) -> None:
    assert load(entry(result=labels, **({"result_schema": schema} if schema else {}))) == ([], [])


@pytest.mark.parametrize("labels", [{"integrity": "trusted"}, {"trusted": ["/id"]}, {"created": [""]}])
def test_trusted_fields_need_a_result_schema(labels: dict[str, Any]) -> None:
    ((field, value),) = labels.items()
    place = value if field == "integrity" else value[0]

    assert load(entry(result=labels, result_schema=None)) == (
        [f'manifest "{place}": `{field}` needs a `result_schema` that limits the trusted values | {UNBOUNDED}'], []
    )  # fmt: skip
    assert load(entry(result={"parties": ["/sender"]}, result_schema=None)) == ([], [])


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/sendr", "did you mean `sender`?"),
        ("/id/number", "write a path of the result schema"),
        ("/size/*", "write a path of the result schema"),
        ("/sender/*/x", "write a path of the result schema"),
        ("/sender/phone", "write a path of the result schema"),
    ],
)
def test_label_path_that_the_result_schema_lacks_is_a_fault(path: str, hint: str) -> None:
    sender = {**MAIL["properties"]["sender"], "additionalProperties": False}
    schema = {"type": "array", "items": {**MAIL, "properties": {**MAIL["properties"], "sender": sender}}}
    faults, _ = load(entry(result={"parties": [path]}, result_schema=schema))

    assert faults == [f'manifest "{path}": `{path}` is not declared in the result schema | {hint}']


@pytest.mark.parametrize("path", ["id", "/", "/a//b", "/a~2", "/a/", "#/a", "/" + "a" * 512, "/a" * 33])
def test_label_path_must_be_a_json_pointer(path: str) -> None:
    faults, _ = load(labelled(names=[path]))

    shown_path = path if len(path) <= 60 else f"{path[:57]}..."
    message = f"`result.names[0]` must be a JSON pointer into the result, not `{shown_path}`"
    hint = "such as /id (in a list, the id of each item); `*` is any member, and the empty text the whole result"
    assert faults == [f"manifest {json.dumps(path)}: {message} | {hint}"]


def test_label_path_listed_under_parties_or_names_cannot_also_be_trusted() -> None:
    tool = labelled(trusted=["/id", "/sender/address"], names=["/title"])
    trusted = 'manifest "/sender/address": `/sender/address` is in `trusted`, but the path or a part of it is also in'
    hint = "other people can write the values in `parties` and `names`: keep the path in one list"

    assert load(tool, actions={"send_mail": {"result": {"parties": ["/sender"]}}}) == (
        [f"{trusted} `parties` | {hint}"], []
    )  # fmt: skip
    assert load(tool | {"result": {"trusted": ["/sender/address"], "names": ["/*/address"]}}) == (
        [f"{trusted} `names` | {hint}"], []
    )  # fmt: skip


def test_label_whose_trust_the_governance_file_revokes_is_not_checked() -> None:
    labels = {"integrity": "trusted", "trusted": ["/title", "/id"]}

    assert load(
        labelled(**labels), actions={"send_mail": {"result": {"integrity": "untrusted", "trusted": ["/id"]}}}
    ) == ([], [])


def test_faulty_labels_of_the_governance_file_are_reported_in_that_file() -> None:
    faults, _ = load(entry(), actions={"send_mail": {"result": {"trusted": ["/title"]}, "roles": {"too": "body"}}})

    assert faults == [
        f'governance "/title": `trusted` includes `/title`, which the result schema does not limit | {UNBOUNDED}',
        'governance "too": `too` is not an argument of the schema | did you mean `to`?',
    ]


def test_role_of_an_argument_that_does_not_exist_is_a_fault() -> None:
    faults, _ = load(entry(roles={"to": "destination", "recipient": "destination"}))

    assert faults == ['manifest "recipient": `recipient` is not an argument of the schema | known: to, about']


FILE = {"type": "object", "properties": {"path": {"type": "string"}}, "additionalProperties": False}
FILES = {"type": "object", "properties": {"to": {"type": "string"}, "files": {"type": "array", "items": FILE}}}
STAR = "write a path of the argument schema, with `*` for the items of a list"


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("/files/*/path", ""),
        ("/files/*", ""),
        ("/files/*/*", ""),
        ("/files/path", f"`/files/path` is not in the argument schema | {STAR}"),
        ("/files/0/path", f"`/files/0/path` is not in the argument schema | {STAR}"),
        ("/files/*/paht", "`/files/*/paht` is not in the argument schema | did you mean `path`?"),
        ("/to/*", f"`/to/*` is not in the argument schema | {STAR}"),
        ("/file/*/path", "`file` is not an argument of the schema | did you mean `files`?"),
    ],
)
def test_role_of_a_path_that_no_argument_can_have_is_a_fault(path: str, fault: str) -> None:
    faults, _ = load(entry(schema=FILES, roles={path: "object"}))

    assert faults == ([f'manifest "{path}": {fault}'] if fault else [])


# Warnings about likely mistakes

NO_ROLES = (
    "has effects, but declares no `roles` for its arguments | state `roles` (destination, object, value, url, "
    "address, body), or `roles: {}` if no argument has one"
)
LEAVES = (
    "the arguments of `send_mail` leave the system, but no argument has a role by which marked data is kept out "
    "| state `roles`: "
    "destination for sent data, url for fetched addresses, `{}` if neither applies"
)
IRREVERSIBLE = "suggests an effect that cannot be undone | state `destructive: true`, or false"
NOWHERE = (
    "but no argument has the role of its destination | give the recipient's argument the role destination, url or "
    "address, or remove `admits`"
)

BELIEVED = (
    "`send_mail` has effects, so only `created` fields of its result are trusted | label new ids as "
    "`created`, or declare an effect class that only reads"
)


@pytest.mark.parametrize(
    ("fields", "warnings"),
    [
        ({"roles": None}, [f'"send_mail": `send_mail` {NO_ROLES}']),
        ({"roles": None, "schema": {"type": "object", "properties": {}}}, []),
        ({"roles": None, "effect_class": "read-internal", "result": {"trusted": ["/id"]}}, []),
        ({"roles": None, "effect_class": "read-external"}, [f'"send_mail": {LEAVES}']),
        ({"roles": None, "effect_class": "read-external", "schema": {"type": "object", "properties": {}}}, []),
        ({"effect_class": "read-external"}, []),
        ({"result": {"integrity": "trusted"}, "result_schema": CODE}, [f'{{"integrity": "trusted"}}: {BELIEVED}']),
        ({"result": {"trusted": ["/id"]}}, [f'{{"trusted": ["/id"]}}: {BELIEVED}']),
        ({"result": {"created": ["/id"], "names": ["/title"], "markings": ["mail"]}}, []),
        ({"admits": ["mail"], "roles": {"to": "object", "about": "body"}},
         [f'["mail"]: data may leave through `send_mail`, {NOWHERE}']),
        ({"admits": ["mail"], "roles": {"to": "destination"}}, []),
        ({"admits": []}, []),
        ({"name": "delete_mail", "description": "Delete a mail."},
         [f'"delete_mail": `delete_mail` {IRREVERSIBLE}']),
        ({"name": "delete_mail", "description": "Delete a mail.", "destructive": False}, []),
    ],
)  # fmt: skip
def test_likely_label_mistakes_cause_warnings(fields: dict[str, Any], warnings: list[str]) -> None:
    asked = load(entry(**{"effect_class": "stage", **fields}), flow={"profile": "strict"})

    assert asked == ([], [f"manifest {warning}" for warning in warnings])


def test_roles_are_not_required_without_labels() -> None:
    assert load(entry(name="delete_mail", description="Delete a mail.", effect_class="stage", roles=None)) == ([], [])


def test_all_tools_must_declare_argument_roles_if_one_tool_has_labels() -> None:
    reads = entry(name="read_mail", description="Read.", roles=None, result={})

    assert load(entry(effect_class="stage", roles=None), reads) == (
        [],
        [f'manifest "send_mail": `send_mail` {NO_ROLES}'],
    )
