"""OPA as a compiler for Rego in a folder. Its errors become faults in the user's files."""

import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, Final

from pdp.documents import Document, Part
from pdp.errors import Fault, FileFaultsError, Place, UsageError
from pdp.opa.modules import Module, write_texts
from pdp.opa.program import run_opa

_TIMEOUT: Final = 120
# A module that only has METADATA for all packages of the user. No file of a user can have this name.
_APPLIED: Final = "custom/.schemas.rego"
_UNDEFINED: Final = "undefined function "
_PURE: Final = "policies must decide the same on both engines: pass time and facts in the request"
_WRITTEN: Final = {"div": "div (`/`)", "internal.print": "print"}
# Hints for builtins that are not allowed, by the first part of the builtin's name.
_INSTEAD: Final = {
    "div": "compare products, `number.product([a, b])`, or use `number.percentage(amount, percent)`",
    "ceil floor round": "use `number.rounded(x, decimals)` of `data.authz.lib.number`",
    "bits.": "use a separate attribute for each flag",
    "glob. regex. re_match": "put patterns into the argument's schema in the manifest: `pattern: ^...$`",
    "format_int json.marshal sprintf strings.render yaml.marshal": (
        'put values into the reason\'s details: `reason.new(rego.metadata.rule(), {"amount": amount})`'
    ),
    "internal.print trace": "print only in unit tests, and remove it here",
    "numbers.range": "write the numbers out as a list, or iterate over a list with `some i, x in list`",
    "indexof_n replace strings.": 'compare parts: `split(x, ",")`, `contains`, `startswith`, `endswith`, `trim`',
    "json.filter json.patch json.remove object.": "use `object.get`, `object.filter`, `object.remove`, `object.union`",
    "json. yaml. graphql. io. crypto. base64 hex. urlquery. uri. net. semver. units.": (
        "compute the value in the application and pass it as a fact; map it with `context:` in the governance file"
    ),
}
_NOWHERE: Final = "undefined ref: "
_RECURSIVE: Final = (
    "a rule must not depend on itself: remove one of these references; "
    "a concern cannot use the decision, which uses the concern"
)
_AT_END: Final = "unexpected eof token"
_EMPTY: Final = "empty module"
_NO_HEAD: Final = "cannot be used for rule name"
_NOT_REGO: Final = "check this line and the one before it; a rule begins like `deny contains reason.new(...) if {`"


class OpaTool:
    """The OPA program. Its working folder has the modules at their paths in the bundle.

    OPA gets relative paths, because absolute paths would end up in the compiled policy. Methods raise OPA's errors as
    `FileFaultsError`, and `UsageError` if OPA gives no location or cannot be run. The file `capabilities` lists the
    builtins that policies may use; None allows all builtins of OPA.
    """

    def __init__(
        self, opa: Path, folder: Path, modules: Mapping[str, Module], *, capabilities: Path | None = None
    ) -> None:
        write_texts(folder, {path: module.text for path, module in modules.items()})
        self._opa = opa
        self._folder = folder
        self._modules = modules
        self._capabilities = [] if capabilities is None else ["--capabilities", str(capabilities)]

    def parse(self, staged: str) -> Any:
        """Return the syntax tree of one module, with locations, as `opa parse --format json` writes it."""
        return json.loads(self._run("parse", "--format", "json", "--json-include", "locations", staged))

    def dependencies(self, rule: str) -> frozenset[str]:
        """Return a rule and all rules on which the rule depends, directly or indirectly, as `data.a.b`."""
        answer = json.loads(self._run("deps", "--format", "json", "-d", ".", rule))
        return frozenset(".".join(str(part["value"]) for part in rule) for rule in answer.get("virtual") or ())

    def check(self, request: Any, schemas: Mapping[str, Any]) -> None:
        """Check all modules strictly. METADATA refers to the schema `request` as `schema.request`.

        `schemas`, by path such as `input`, apply to the user's modules even if their METADATA does not name them.
        """
        beside = self._folder.parent / "schemas"
        names = {path: path.replace(".", "_") for path in schemas}
        texts = {f"{name}.json": json.dumps(schemas[path]) for path, name in names.items()}
        write_texts(beside, {**texts, "request.json": json.dumps(request)})
        applied = [f"#   - {path}: schema.{name}" for path, name in names.items()]
        lines = ["# METADATA", "# scope: subpackages", "# schemas:", *applied, "package custom"]
        write_texts(self._folder, {_APPLIED: "\n".join(lines)})
        try:
            self._run(
                "check", "--strict", "--max-errors", "100", "--format", "json", *self._capabilities,
                "--schema", str(beside), "-b", ".",
            )  # fmt: skip
        finally:
            (self._folder / _APPLIED).unlink()

    def compile(self, entrypoints: Sequence[str]) -> bytes:
        """Compile all modules to one WebAssembly module.

        `-O 0` is needed: at higher levels OPA compiles the data in, ignores data at run time, and confuses entrypoints.
        """
        out = self._folder.parent / "compiled.tar.gz"
        named = [argument for entrypoint in entrypoints for argument in ("-e", entrypoint)]
        self._run("build", "-t", "wasm", "-O", "0", *named, *self._capabilities, "-b", ".", "-o", str(out))
        with tarfile.open(out) as tar:
            module = tar.extractfile("/policy.wasm")
            if module is None:
                raise UsageError("OPA compiled no policy.wasm", hint="check the program with `pdp opa path`")
            return module.read()

    def _run(self, *arguments: str) -> bytes:
        done = run_opa(self._opa, arguments, folder=self._folder, timeout=_TIMEOUT)
        if done.returncode != 0:
            raise self._error_of_output(done.stderr or done.stdout)
        return done.stdout

    def _error_of_output(self, output: bytes) -> UsageError:
        """Convert OPA's errors to faults with locations, or without locations to a `UsageError` with the first line."""
        try:
            errors = json.loads(output)["errors"]
            faults = [self._fault(error) for error in errors if "location" in error]
            if len(faults) < len(errors):  # the last error only says that OPA stopped because of too many errors
                faults[-1] = replace(faults[-1], hint="OPA stops here; there may be more faults")
        except (ValueError, LookupError, TypeError):
            lines = output.decode(errors="replace").strip().splitlines()
            first = lines[0].removeprefix("error: ") if lines else "no message"
            return UsageError(f"OPA rejected the policies: {first}")
        distinct: dict[object, Fault] = {}
        for fault in faults:
            # OPA reports several errors for a source line that is not Rego. Only the first of these errors is kept.
            line = (fault.place.file, fault.place.line)
            distinct.setdefault(line if fault.hint == _NOT_REGO else fault, fault)
        return FileFaultsError(list(distinct.values()))

    def _fault(self, error: Mapping[str, Any]) -> Fault:
        location = error["location"]
        staged = PurePosixPath(location["file"]).as_posix()
        module = self._modules.get(staged)
        row, column = max(int(location["row"]), 1), max(int(location["col"]), 1)
        lines = [] if module is None else module.text.splitlines()
        message, hint = self._message_and_hint(" ".join(str(error["message"]).split()))
        if error.get("code") == "rego_parse_error":
            conflict = module and Document(str(module.file), module.text, Part(None, 1, 1)).conflict()
            if conflict:
                return conflict
            hint = hint or _NOT_REGO
        if message.startswith(_NOWHERE):
            row, column = _locate_name(message, lines, (row, column))
            message = f"`{message.removeprefix(_NOWHERE)}` does not exist"
            known = (error.get("details") or {}).get("oneOf") or ()
            hint = f"these exist: {', '.join(map(str, known))}" if known else hint
        # OPA may report a line after the last line, so the last line is shown instead.
        row, column = min((row, column), _end_of_text(lines)) if lines else (row, column)
        if message.startswith(_AT_END):
            hint = "close what is still open, such as a bracket"
        elif message == _EMPTY:
            content = "has only comments" if any(map(str.strip, lines)) else "is empty"
            hint = f"the file {content}: begin with `package custom.concerns.NAME`, or remove it"
        shown = lines[row - 1] if row <= len(lines) else ""
        return Fault(Place(str(module.file if module else staged), row, column), message, hint=hint, source=shown)

    def _message_and_hint(self, message: str) -> tuple[str, str | None]:
        if message.startswith(_UNDEFINED):
            name = message.removeprefix(_UNDEFINED)
            if name in self._builtins():
                hint = next((hint for names, hint in _INSTEAD.items() if name.startswith(tuple(names.split()))), _PURE)
                return f"the builtin {_WRITTEN.get(name, name)} is not allowed in policies", hint
            return f"unknown function {name}", "check its spelling, and that its package is imported"
        for staged, module in self._modules.items():
            message = message.replace(staged, str(module.file))
        if message.endswith(_NO_HEAD):
            return f"a rule cannot begin like this: {message}", _NOT_REGO
        if message.endswith(" is unsafe"):
            return message, "the variable has no value: check its spelling"
        if message.startswith("yaml: "):
            message = message.removeprefix("yaml: ")
            return f"METADATA is not YAML: {message}", "check its indentation, quotes and brackets"
        return message, _RECURSIVE if " recursive: " in message else None

    def _builtins(self) -> set[str]:
        current = json.loads(self._run("capabilities", "--current"))
        return {builtin["name"] for builtin in current["builtins"]}


def _locate_name(message: str, lines: Sequence[str], place: tuple[int, int]) -> tuple[int, int]:
    """Return where an unknown name is used. For names below a module's own rules, OPA may report a later use."""
    name = ".".join(message.rsplit(".", 2)[1:])
    if name in "".join(lines[place[0] - 1 : place[0]]):
        return place
    return next(((row, line.index(name) + 1) for row, line in enumerate(lines, start=1) if name in line), place)


def _end_of_text(lines: Sequence[str]) -> tuple[int, int]:
    row = max((at for at, line in enumerate(lines, start=1) if line.strip()), default=1)
    return row, len(lines[row - 1].rstrip()) + 1
