"""Check the tree against docs/explanation/architecture.md: small folders with a map, one subject a file, unique names.

Documents, examples and the project of `pdp init` may import public modules only (`PUBLIC_MODULES`). import-linter
checks the layers and the imports of the runtime, with the contracts in pyproject.toml. Run by `scripts/lint`.
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final

import grimp

ROOT: Final = Path(__file__).resolve().parents[1]

FILES_IN_A_FOLDER: Final = 12
LINES_IN_A_FILE: Final = {"pdp": 500, "tests": 1000}
EXPORTED_NAMES: Final = 30
PUBLIC_MODULES: Final = (
    "pdp", "pdp.adapters.*", "pdp.engines", "pdp.errors", "pdp.files", "pdp.loop", "pdp.testing", "pdp.tools",
)  # fmt: skip
"""The modules that others may import; the docstring of `pdp` says what each has."""
SHOWN: Final = (
    "README.md",
    "docs/**/*.md",
    "deploy/**/*.md",
    "examples/**/*.md",
    "examples/**/*.py",
    "pdp/cli/project/**/*.py",
)
"""Files whose code others copy."""
_Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_DEFINITIONS: Final = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
EMPTY_NAMES: Final = frozenset({"utils", "util", "helpers", "helper", "common", "manager", "misc"})


def faults(root: Path) -> Iterator[str]:
    """Yield every fault of the tree below `root` as one line with its location."""
    for tree in LINES_IN_A_FILE:
        for folder in sorted({file.parent for file in (root / tree).rglob("*.py")}):
            yield from _folder_faults(folder.relative_to(root), folder)
    yield from _double_names(root)
    yield from _forgotten_steps(root)
    yield from _too_many_exports(root / "pdp/__init__.py")
    yield from _private_imports(root)
    yield from _import_cycles()


def _folder_faults(name: Path, folder: Path) -> Iterator[str]:
    files = sorted(file for file in folder.glob("*.py") if file.name != "__init__.py")
    counted = [file for file in files if f"{'.'.join(name.parts)}.{file.stem}" not in PUBLIC_MODULES]
    if len(counted) > FILES_IN_A_FOLDER and name.name != "versions":
        yield f"{name}: {len(counted)} files, at most {FILES_IN_A_FOLDER}: move a subject into a folder"
    for file in files:
        lines, most = len(file.read_text().splitlines()), LINES_IN_A_FILE[name.parts[0]]
        if lines > most:
            yield f"{name / file.name}: {lines} lines, at most {most}: split it, as it has more than one subject"
        if file.stem in EMPTY_NAMES:
            yield f"{name / file.name}: name the file after its subject"
    init = folder / "__init__.py"
    if name.parts[0] == "pdp" and len(name.parts) > 1 and name.name != "versions" and init.exists():
        map_of_folder = ast.get_docstring(ast.parse(init.read_text())) or ""
        if absent := sorted({file.stem for file in files} - set(_words(map_of_folder))):
            yield f"{name / '__init__.py'}: the docstring, the map of the folder, does not name {', '.join(absent)}"


def _words(text: str) -> list[str]:
    return "".join(letter if letter.isalnum() or letter == "_" else " " for letter in text).split()


def _double_names(root: Path) -> Iterator[str]:
    places = defaultdict(list)
    for file in sorted((root / "pdp").rglob("*.py")):
        if file.parent.name == "versions":  # Alembic calls the `upgrade` of each.
            continue
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef) or (isinstance(node, _DEFINITIONS) and _is_public(node)):
                places[node.name.lstrip("_")].append(f"{file.relative_to(root)}:{node.lineno}")
    for name, where in sorted(places.items()):
        if len(where) > 1:
            yield f"{where[0]}: {name} is also defined in {', '.join(where[1:])}: rename one"


def _forgotten_steps(root: Path) -> Iterator[str]:
    """Yield calls of generator functions whose result is unused, so that the call has no effect.

    Neither mypy nor ruff reports them; mypy reports a wrong use of the result.
    """
    trees = {file: ast.parse(file.read_text()) for file in sorted((root / "pdp").rglob("*.py"))}
    generators = {
        (_module(root, file), node.name)
        for file, tree in trees.items()
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.returns and ast.unparse(node.returns).startswith("Generator[")
    }
    for file, tree in trees.items():
        nodes = list(ast.walk(tree))
        imports = [
            (node.module, name.name) for node in nodes if isinstance(node, ast.ImportFrom) for name in node.names
        ]
        own = [(_module(root, file), node.name) for node in tree.body if isinstance(node, ast.FunctionDef)]
        names = {name for _, name in generators.intersection((*own, *imports))}
        for node in nodes:
            call = node.value if isinstance(node, ast.Expr) else None
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in names:
                yield f"{file.relative_to(root)}:{call.lineno}: {call.func.id} is a generator: write `yield from`"


def _module(root: Path, file: Path) -> str:
    return ".".join(file.relative_to(root).with_suffix("").parts)


def _is_public(node: _Definition) -> bool:
    return not node.name.startswith(("_", "pytest_")) and not _registered(node)


def _registered(node: _Definition) -> bool:
    """Return whether typer or pytest calls the function, so that its name is that of a command or a fixture."""
    decorators = [part.func if isinstance(part, ast.Call) else part for part in node.decorator_list]
    return any(isinstance(part, ast.Attribute) and part.attr in ("command", "fixture") for part in decorators)


def _too_many_exports(init: Path) -> Iterator[str]:
    names = {
        name.asname or name.name
        for node in ast.walk(ast.parse(init.read_text()))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("pdp.")
        for name in node.names
    }
    if len(names) > EXPORTED_NAMES:
        yield f"pdp/__init__.py: {len(names)} public names, at most {EXPORTED_NAMES}"


def _private_imports(root: Path) -> Iterator[str]:
    init = ast.get_docstring(ast.parse((root / "pdp/__init__.py").read_text())) or ""
    listed = {"pdp", *re.findall(r"^- (pdp[\w.*]*):", init, re.MULTILINE)}
    if differing := listed.symmetric_difference(PUBLIC_MODULES):
        yield f"pdp/__init__.py: the docstring and PUBLIC_MODULES differ: {', '.join(sorted(differing))}"
    public = re.compile("|".join(name.replace(".", r"\.").replace("*", r"\w+") for name in PUBLIC_MODULES))
    for file in sorted(file for pattern in SHOWN for file in root.glob(pattern)):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            imported = re.match(r"\s*(?:from|import) (pdp(?:\.\w+)*)(?: import| as|$)", line)
            if imported and not public.fullmatch(imported[1]):
                yield f"{file.relative_to(root)}:{number}: {imported[1]} is not public, see PUBLIC_MODULES"


def _import_cycles() -> Iterator[str]:
    """Yield a cycle of imports, if there is one. Imports inside functions and for type checking count."""
    graph = grimp.build_graph("pdp", cache_dir=None)
    try:
        TopologicalSorter({name: graph.find_modules_directly_imported_by(name) for name in graph.modules}).prepare()
    except CycleError as error:
        yield f"import cycle: {' <- '.join(error.args[1])}"


if __name__ == "__main__":
    found = list(faults(ROOT))
    for fault in found:
        print(fault, file=sys.stderr)
    sys.exit(1 if found else 0)
