"""Names in a custom concern that do not exist in the request, in the context or arguments of tools, or in the data."""

import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pdp.cli.commands.check import check
from pdp.errors import Fault, FileFaultsError
from pdp.opa.build import compile_bundle
from pdp.opa.modules import baseline_policies_path
from pdp.opa.names import KnownNames
from tests.support.payments import EXAMPLE

pytestmark = [pytest.mark.opa, pytest.mark.usefixtures("opa")]

CONCERN = Path(__file__).with_name("names.rego").read_text()
DATA = (
    '{"settings": {"desk": {"hours": {"berlin": {"from": 9}, "paris": {"to": 17}}, "empty": {}, "rows": [{"a": 1}]}}}'
)
# Each item has the body of a rule and the start of the expected fault. For the rules in KNOWN, only a check with a
# manifest and data reports a fault.
ALWAYS = [
    ("input.action.nme == 1", "`input.action.nme`"),
    ("input.contxt.amount == 1", "`input.contxt"),
    ("input.subject.properties.rols[_] == 1", "`input.subject.properties.rols"),
    ("input.context.approval.grant[_] == 1", "`input.context.approval.grant`"),
    ("not input.action.nme", "`input.action.nme`"),
    ("count([x | x := input.action.nme]) == 0", "`input.action.nme`"),
    ("x := input.action\n\tx.nme == 1", ".nme` does not exist"),
    ("_action.nme == 1", "`data.custom.concerns.desk._action.nme`"),
    ('object.get(input, "actoin", null) == null', "`input.actoin`"),
    ('object.get(input, ["action", "nme"], null) == null', "`input.action.nme`"),
    ('some k in ["action", "actoin"]\n\tinput[k] == 1', "`input.actoin`"),
    ('k := lower("ACTION")\n\tinput[k] == 1', "a member of `input` is read by a computed name"),
    ("[input.action][0].nme == 1\n\tinput.action.nmae == 1", "`input.action.nmae`"),
    ("walk(input, [_, 1])", "`input` is a record of the request"),
    ("_reads(input.action)", "`input.action.nme`"),
    ("data.setting.desk == 1", "`data.setting.desk` is neither a rule"),
    ("data.authz.lib.resource.markngs == 1", "`data.authz.lib.resource.markngs` is neither a rule"),
    ("data.directry.documents[input.resource.id].x", "`data.directry.documents[…].x` is neither a rule"),
    ("manifest.entry.risk_teir == 1", "`data.authz.lib.manifest.entry.risk_teir`"),
    ("e := manifest.entry\n\te.approval.quorm == 1", "`data.authz.lib.manifest.entry.approval.quorm`"),
    ("some l in manifest.entry.limits\n\tl.lmit == 1", "`data.authz.lib.manifest.entry.limits[…].lmit`"),
    ('manifest.entry.risk_tier == "hihg"', '`data.authz.lib.manifest.entry.risk_tier` is never "hihg"'),
    ('input.action.nme == 1 with input as {"action": {"nme": 1}}', "`with` in a concern"),
]  # fmt: skip
KNOWN = [
    ('input.action.name == "initiate_wir"', '`input.action.name` is never "initiate_wir"'),
    ('input.action.properties.tool in {"initiate_wir"}', '`input.action.properties.tool` is never "initiate_wir"'),
    ("input.context.amuont == 1", "`input.context.amuont`"),
    ("input.context.arguments.beneficiary_idd == 1", "`input.context.arguments.beneficiary_idd`"),
    ('object.get(input.context.arguments, "amuont", 0) == 1', "`input.context.arguments.amuont`"),
    ("input.resource.properties.colour == 1", "`input.resource.properties.colour`"),
    ("data.settings.desk.huors.berlin == 1", "`data.settings.desk.huors"),
    ("data.settings.desk.hours[input.action.name].til == 1", "`data.settings.desk.hours[input.action.name].til`"),
    ('is_object(data.settings.desk)\n\tobject.get(data.settings.desk, "huors", 0) == 1', "`data.settings.desk.huors`"),
]
RIGHT = [
    'some k in ["action", "subject"]\n\tis_object(input[k])',
    'split(input.subject.id, "@")[1] == "x"',
    "is_object(input.context.approval)",
    "is_number(input.context.arguments.amount)\n\tinput.context.arguments.amount > 5",
    'input.action.name == "initiate_wire"',
    'manifest.entry.effect_class == "commit-high"',
    "some stated in manifest.entry.limits\n\tstated.limit == input.action.name",
    "manifest.entry.approval.expires_seconds == 3600",
    'object.get(input.context, "amount", null) == null',
    'object.get(input.context, ["approval", "id"], null) == null',
    "input.context.approval == null",
    "input.subject.properties.limits[input.action.name] == 1",
    "walk(input.context.arguments, [_, 1])",
    "input.context.arguments.beneficiary_id == 1",
    "data.settings.desk.hours[input.action.name].to == 17",
    "data.settings.desk.empty.anything == 1",
    "data.directory.documents[input.resource.id].restricted == true",
    "some row in data.settings.desk.rows\n\trow.a == 1",
]


def test_name_check_finds_integer_arguments_in_every_kind_of_schema() -> None:
    integer = {"type": "integer"}
    one = {
        "n": integer,
        "m": integer,
        "ns": {"type": "array", "items": integer},
        "o": {"type": "object", "properties": {"p": integer}},
    }
    other = {"n": {"type": ["integer", "string"]}, "m": {"enum": [1, 2]}}

    def whole(*schemas: dict[str, Any]) -> list[str]:
        tools = [SimpleNamespace(schema_={"type": "object", **schema}) for schema in schemas]
        return KnownNames(cast("Any", tools)).integers()

    at = "input.context.arguments"
    assert whole({"properties": one}) == [f"{at}.m", f"{at}.n", f"{at}.ns.*", f"{at}.o.p"]
    assert whole({"properties": one}, {"properties": other}) == [f"{at}.m", f"{at}.ns.*", f"{at}.o.p"]
    assert whole({"properties": one}, {"properties": {}, "additionalProperties": True}) == []
    assert whole({"properties": {"self": {"$ref": "#"}, "n": integer}})[:1] == [f"{at}.n"]
    assert KnownNames().integers() == [at]


def concern(folder: Path, body: str, name: str = "desk") -> Path:
    file = folder / f"policies/{name}.rego"
    file.parent.mkdir(exist_ok=True)
    file.write_text(CONCERN.replace("desk.closed", f"{name}.closed").replace(".desk", f".{name}").replace("BODY", body))
    (folder / "data.json").write_text(DATA)
    return file.parent


def faults(folder: Path, bodies: Sequence[str], *, known: bool) -> list[list[str]]:
    """Return the faults that a concern has for each rule body, except faults about missing unit tests."""
    folder.mkdir(exist_ok=True)
    for number, body in enumerate(bodies):
        policies = concern(folder, body, f"desk{number}_")
    stated = ([EXAMPLE / "manifest.json"], [EXAMPLE / "governance.yaml"], [folder / "data.json"]) if known else ()
    with pytest.raises(FileFaultsError) as caught:
        check([policies], None, *stated)
    found: dict[str, list[str]] = {f"desk{number}_": [] for number in range(len(bodies))}
    for fault in caught.value.faults:
        if not fault.message.endswith("has no unit tests"):
            found[Path(fault.place.file).stem].append(re.sub(r"desk\d+_", "desk", fault.message))
    return list(found.values())


def begin_as(faults: Sequence[Sequence[str]], messages: Sequence[str]) -> list[str]:
    pairs = zip(faults, messages, strict=True)
    return [message for found, message in pairs if not any(message in line for line in found)]


def test_every_bundle_build_rejects_rego_that_reads_an_unknown_request_member(tmp_path: Path) -> None:
    bodies, messages = zip(*ALWAYS, strict=True)

    assert begin_as(faults(tmp_path, bodies, known=False), messages) == []


def test_rego_name_that_manifest_and_data_lack_is_rejected(tmp_path: Path) -> None:
    bodies, messages = zip(*KNOWN, strict=True)

    assert begin_as(faults(tmp_path / "known", bodies, known=True), messages) == []
    assert not any(faults(tmp_path / "unknown", bodies, known=False))


def test_rego_names_that_manifest_or_data_define_cause_no_fault(tmp_path: Path) -> None:
    bodies = ["\n\t".join(RIGHT), "is_object(input)"]

    assert not any(faults(tmp_path / "known", bodies, known=True))
    assert not any(faults(tmp_path / "unknown", bodies, known=False))


def found(opa: Path, folder: Path, body: str) -> list[Fault]:
    policies = concern(folder, body)
    with pytest.raises(FileFaultsError) as caught:
        compile_bundle(policies=[baseline_policies_path(), policies], release=1, opa=opa)
    return list(caught.value.faults)


def test_each_unknown_name_in_rego_is_reported_with_its_location(opa: Path, tmp_path: Path) -> None:
    body = "_action.nme == 1\n\tinput.action.nme == 1\n\t_action.nmae == 1\n\tis_object(_action)"

    assert [fault.source.strip() for fault in found(opa, tmp_path, body)] == [
        "_action.nme == 1", "input.action.nme == 1", "_action.nmae == 1",
    ]  # fmt: skip


def test_last_fault_says_that_opa_does_not_list_further_faults(opa: Path, tmp_path: Path) -> None:
    body = "\n\t".join(f"input.action.n{at} == 1" for at in range(120))
    *listed, last = found(opa, tmp_path, body)

    assert last.hint == "OPA stops here; there may be more faults"
    assert {fault.hint for fault in listed} == {"these exist: name, properties"}


def test_check_command_checks_names_with_manifest_and_data(tmp_path: Path) -> None:
    policies = concern(tmp_path, "input.context.amuont == 1\n\tdata.settings.desk.huors == 1")

    with pytest.raises(FileFaultsError) as caught:
        check([policies], None, [EXAMPLE / "manifest.json"], [EXAMPLE / "governance.yaml"], [tmp_path / "data.json"])

    messages = [fault.message for fault in caught.value.faults]
    assert "`input.context.amuont` does not exist" in messages
    assert "`data.settings.desk.huors` does not exist" in messages


def test_schema_annotation_of_a_concern_is_rejected(opa: Path, tmp_path: Path) -> None:
    policies = concern(tmp_path, "input.actoin == 1")
    file = policies / "desk.rego"
    text = file.read_text()
    file.write_text(text.replace("# custom:", "# schemas:\n#   - input: {type: object}\n# custom:"))

    with pytest.raises(FileFaultsError) as caught:
        compile_bundle(policies=[baseline_policies_path(), policies], release=1, opa=opa)

    assert "METADATA states a schema, which would replace the schema of the request" in [
        fault.message for fault in caught.value.faults
    ]
