"""OPA as a compiler: run over staged Rego, with its complaints turned into faults of the user's own files."""

import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, Final

from pdp.documents import Document, Part
from pdp.errors import Fault, FileFaultsError, Place, UsageError
from pdp.workbench.opa.modules import Module, write_texts
from pdp.workbench.opa.program import run_opa

_TIMEOUT: Final = 120
# Where METADATA stands for all of the user's packages; a user's own file has another name.
_APPLIED: Final = "custom/.schemas.rego"
_UNDEFINED: Final = "undefined function "
_PURE: Final = "policies are pure, and the same on both engines: let time and facts come through the request"
_WRITTEN: Final = {"div": "div (`/`)", "internal.print": "print"}
# What to write instead of a builtin that is not admitted, by how its name begins.
_INSTEAD: Final = {
    "div": "compare products, `number.product([a, b])`, or use `number.percentage(amount, percent)`",
    "ceil floor round": "use `number.rounded(x, decimals)` of `data.authz.lib.number`",
    "bits.": "give each flag an attribute of its own",
    "glob. regex. re_match": "patterns belong into the argument's schema in the manifest: `pattern: ^...$`",
    "format_int json.marshal sprintf strings.render yaml.marshal": (
        'put the values into the reason\'s details: `reason.new(rego.metadata.rule(), {"amount": amount})`'
    ),
    "internal.print trace": "print in unit tests alone, and remove it here",
    "numbers.range": "write the numbers out as a list, or iterate over a list with `some i, x in list`",
    "indexof_n replace strings.": 'compare parts: `split(x, ",")`, `contains`, `startswith`, `endswith`, `trim`',
    "json.filter json.patch json.remove object.": "use `object.get`, `object.filter`, `object.remove`, `object.union`",
    "json. yaml. graphql. io. crypto. base64 hex. urlquery. uri. net. semver. units.": (
        "let the application read the value and pass what it means as a fact; `context:` in the governance file maps it"
    ),
}
_NOWHERE: Final = "undefined ref: "
_RECURSIVE: Final = (
    "no rule may need itself: take one of these references out; "
    "a concern cannot ask the decision, which asks the concern"
)
_AT_END: Final = "unexpected eof token"
_EMPTY: Final = "empty module"
_NO_HEAD: Final = "cannot be used for rule name"
_NOT_REGO: Final = "check this line and the one before it; a rule begins as in `deny contains reason.new(...) if {`"


class OpaTool:
    """The OPA program, run in a folder in which modules are staged under the paths that they have in the bundle.

    Sources given by absolute path would leave that path in what is compiled. Its methods raise `FileFaultsError` with
    each thing that OPA objects to, and `UsageError` where OPA refuses without a place or cannot be run.

    Args:
        modules: by their path in the bundle; they are written into the folder.
        capabilities: the file that lists the builtins that policies may use, or None for all of OPA's.
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
        """Return the syntax tree of one module, with places, as `opa parse --format json` writes it."""
        return json.loads(self._run("parse", "--format", "json", "--json-include", "locations", staged))

    def dependencies(self, rule: str) -> frozenset[str]:
        """Return the rules that a rule asks for, directly or through others, and itself; dotted, as `data.a.b`."""
        answer = json.loads(self._run("deps", "--format", "json", "-d", ".", rule))
        return frozenset(".".join(str(part["value"]) for part in rule) for rule in answer.get("virtual") or ())

    def check(self, request: Any, schemas: Mapping[str, Any]) -> None:
        """Check all modules, strictly. The user's are held to schemas, whether or not their METADATA says so.

        Args:
            request: the schema that METADATA calls `schema.request`.
            schemas: those of the user's modules, by the path that each is about, such as `input` and `data.settings`.
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

        At `-O 0`: more makes OPA bake data in, which is then ignored at run time, and mix up entrypoints.
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
            raise self._refusal(done.stderr or done.stdout)
        return done.stdout

    def _refusal(self, output: bytes) -> UsageError:
        """What OPA objects to: faults with places where it names them, else its first line."""
        try:
            errors = json.loads(output)["errors"]
            faults = [self._fault(error) for error in errors if "location" in error]
            if len(faults) < len(errors):  # the last one says that there are too many
                faults[-1] = replace(faults[-1], hint="OPA stops here: there may be more")
        except (ValueError, LookupError, TypeError):
            lines = output.decode(errors="replace").strip().splitlines()
            first = lines[0].removeprefix("error: ") if lines else "no message"
            return UsageError(f"OPA refuses the policies: {first}")
        distinct: dict[object, Fault] = {}
        for fault in faults:
            # Of one line that is not Rego, OPA complains again and again.
            line = (fault.place.file, fault.place.line)
            distinct.setdefault(line if fault.hint == _NOT_REGO else fault, fault)
        return FileFaultsError(list(distinct.values()))

    def _fault(self, error: Mapping[str, Any]) -> Fault:
        location = error["location"]
        staged = PurePosixPath(location["file"]).as_posix()
        module = self._modules.get(staged)
        row, column = max(int(location["row"]), 1), max(int(location["col"]), 1)
        lines = [] if module is None else module.text.splitlines()
        message, hint = self._wording(" ".join(str(error["message"]).split()))
        if error.get("code") == "rego_parse_error":
            conflict = module and Document(str(module.file), module.text, Part(None, 1, 1)).conflict()
            if conflict:
                return conflict
            hint = hint or _NOT_REGO
        if message.startswith(_NOWHERE):
            row, column = _read_at(message, lines, (row, column))
            message = f"`{message.removeprefix(_NOWHERE)}` leads to nothing that is there"
            known = (error.get("details") or {}).get("oneOf") or ()
            hint = f"known there: {', '.join(map(str, known))}" if known else hint
        # OPA may name a line after the last, where nothing is to be seen.
        row, column = min((row, column), _end(lines)) if lines else (row, column)
        if message.startswith(_AT_END):
            hint = "something is begun and not ended, such as a bracket: close it"
        elif message == _EMPTY:
            content = "has comments alone" if any(map(str.strip, lines)) else "is empty"
            hint = f"the file {content}: begin with `package custom.concerns.NAME`, or remove it"
        shown = lines[row - 1] if row <= len(lines) else ""
        return Fault(Place(str(module.file if module else staged), row, column), message, hint=hint, source=shown)

    def _wording(self, message: str) -> tuple[str, str | None]:
        if message.startswith(_UNDEFINED):
            name = message.removeprefix(_UNDEFINED)
            if name in self._builtins():
                hint = next((hint for names, hint in _INSTEAD.items() if name.startswith(tuple(names.split()))), _PURE)
                return f"the builtin {_WRITTEN.get(name, name)} is not admitted in policies", hint
            return f"unknown function {name}", "check its spelling, and that its package is imported"
        for staged, module in self._modules.items():
            message = message.replace(staged, str(module.file))
        if message.endswith(_NO_HEAD):
            return f"a rule does not begin like this: {message}", _NOT_REGO
        if message.endswith(" is unsafe"):
            return message, "nothing gives it a value: check its spelling"
        if message.startswith("yaml: "):
            message = message.removeprefix("yaml: ")
            return f"METADATA is not YAML: {message}", "check its indentation, quotes and brackets"
        return message, _RECURSIVE if " recursive: " in message else None

    def _builtins(self) -> set[str]:
        current = json.loads(self._run("capabilities", "--current"))
        return {builtin["name"] for builtin in current["builtins"]}


def _read_at(message: str, lines: Sequence[str], place: tuple[int, int]) -> tuple[int, int]:
    """Where a name is read. Of names under a module's own rules OPA gives all the place of the last one."""
    name = ".".join(message.rsplit(".", 2)[1:])
    if name in "".join(lines[place[0] - 1 : place[0]]):
        return place
    return next(((row, line.index(name) + 1) for row, line in enumerate(lines, start=1) if name in line), place)


def _end(lines: Sequence[str]) -> tuple[int, int]:
    """The line and column behind the last text."""
    row = max((at for at, line in enumerate(lines, start=1) if line.strip()), default=1)
    return row, len(lines[row - 1].rstrip()) + 1
