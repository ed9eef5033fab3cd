"""The page of the public Python API: modules, names, signatures and docstrings. The source is parsed, not imported."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from scripts.reference.markdown import ROOT, code, docstring, escaped, fence, page, table

_PUBLIC: Final = ("pdp", "pdp.engines", "pdp.tools", "pdp.files", "pdp.errors", "pdp.loop", "pdp.testing")
_WIDTH: Final = 100
_Defined = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def pages() -> Iterator[tuple[str, str]]:
    """Yield the file names and texts of the list of modules and of the page of each module."""
    homes: dict[tuple[str, str], str] = {}
    rows = []
    for name in _modules():
        yield f"python-api/{name}.md", page(name, *_module(name, homes))
        names = ", ".join(code(each) for _, each in _names(name))
        rows.append((f"[{code(name)}](python-api/{name}.md)", escaped(_first(_tree(name))), names))
    yield (
        "python-api.md",
        page(
            "Python API",
            "Import only from these modules. All other modules may change without notice.",
            table(("module", "purpose", "names"), rows),
        ),
    )


def _modules() -> list[str]:
    adapters = sorted(file.stem for file in (ROOT / "pdp/adapters").glob("*.py") if file.stem != "__init__")
    return [*_PUBLIC, *(f"pdp.adapters.{name}" for name in adapters)]


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(_file(module).read_text())


def _file(module: str) -> Path:
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _first(node: ast.Module) -> str:
    return (ast.get_docstring(node) or "").partition("\n\n")[0].replace("\n", " ")


def _module(module: str, homes: dict[tuple[str, str], str]) -> Iterator[str]:
    yield docstring(ast.get_docstring(_tree(module)))
    for home, name in _names(module):
        if home not in (module, "") and (shown := homes.get((home, name))):
            yield f"## {name}"
            yield f"The same as [{code(f'{shown}.{name}')}]({shown}.md#{name.lower()})."
            continue
        homes[home, name] = module
        node = next((each for each in _tree(home).body if getattr(each, "name", None) == name), None)
        yield f"## {name}"
        if isinstance(node, _Defined):
            yield from _definition(node, node.name)
        else:
            yield from _constant(home, name)


def _names(module: str) -> list[tuple[str, str]]:
    """Return the public names of a module, each with the module that defines it."""
    tree = _tree(module)
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level == 0]
    found = [(str(node.module), each.name) for node in imports for each in node.names if each.asname == each.name]
    defined = [node.name for node in tree.body if isinstance(node, _Defined) and not node.name.startswith("_")]
    own = [(module, name) for name in defined] if module != "pdp" else []
    return sorted({(home, name) for home, name in [*found, *own]}, key=lambda each: each[1].lower())


def _definition(node: _Defined, name: str) -> Iterator[str]:
    yield fence("python", _signature(node, name))
    yield docstring(ast.get_docstring(node))
    if isinstance(node, ast.ClassDef):
        fields = [each for each in node.body if isinstance(each, ast.AnnAssign | ast.Assign) and not _is_private(each)]
        if fields:
            yield fence("python", "\n".join(map(ast.unparse, fields)))
        for member in node.body:
            if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef) and not member.name.startswith("_"):
                yield f"### {name}.{member.name}"
                yield from _definition(member, member.name)


def _is_private(node: ast.AnnAssign | ast.Assign) -> bool:
    target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
    name = target.id if isinstance(target, ast.Name) else "_"
    return name.startswith("_") or name in ("model_config", "code")


def _signature(node: _Defined, name: str) -> str:
    if isinstance(node, ast.ClassDef):
        init = next((each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"), None)
        bases = f"({', '.join(map(ast.unparse, node.bases))})" if node.bases else ""
        return f"class {name}{bases}" + ("" if init is None else f"\n{_call(init, name)}")
    words = [f"@{ast.unparse(each)}\n" for each in node.decorator_list if _is_shown(each)]
    kind = "async def " if isinstance(node, ast.AsyncFunctionDef) else "def "
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return "".join(words) + kind + _call(node, name) + returns


def _is_shown(decorator: ast.expr) -> bool:
    return ast.unparse(decorator) in ("property", "cached_property", "classmethod", "staticmethod", "contextmanager")


def _call(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> str:
    parts = _parameters(node.args)
    if parts and parts[0] in ("self", "cls", "/") and node.args.args[:1]:
        parts = parts[1:]
    line = f"{name}({', '.join(parts)})"
    return line if len(line) <= _WIDTH else f"{name}(\n    " + ",\n    ".join(parts) + ",\n)"


def _parameters(given: ast.arguments) -> list[str]:
    positional = [*given.posonlyargs, *given.args]
    defaults = [*[None] * (len(positional) - len(given.defaults)), *given.defaults]
    parts = [_parameter(each, default) for each, default in zip(positional, defaults, strict=True)]
    if given.posonlyargs:
        parts.insert(len(given.posonlyargs), "/")
    if given.vararg:
        parts.append(f"*{_parameter(given.vararg, None)}")
    elif given.kwonlyargs:
        parts.append("*")
    parts += [_parameter(each, value) for each, value in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    return [*parts, f"**{_parameter(given.kwarg, None)}"] if given.kwarg else parts


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    kind = f": {ast.unparse(argument.annotation)}" if argument.annotation else ""
    value = "" if default is None else ast.unparse(default)
    return f"{argument.arg}{kind}" + (f" = {value}" if kind and value else f"={value}" if value else "")


def _constant(home: str, name: str) -> Iterator[str]:
    body = _tree(home).body
    for at, node in enumerate(body):
        target = (
            node.target
            if isinstance(node, ast.AnnAssign)
            else node.targets[0]
            if isinstance(node, ast.Assign)
            else None
        )
        if isinstance(target, ast.Name) and target.id == name:
            after = body[at + 1].value if at + 1 < len(body) and isinstance(body[at + 1], ast.Expr) else None
            if isinstance(after, ast.Constant) and isinstance(after.value, str):
                yield docstring(after.value)
            else:
                yield fence("python", ast.unparse(node))
