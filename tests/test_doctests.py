"""Every public class and function has an example in its docstring, and every example runs."""

import ast
import dataclasses
import doctest
import enum
import inspect
import shutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pytest

from pdp.client.client import Client
from pdp.client.pep import RemotePep
from scripts.structure import PUBLIC_MODULES
from tests.support import ROOT

MODULES: Final = [module for module in PUBLIC_MODULES if "*" not in module]


def names_of(module: str) -> Iterator[str]:
    """Yield the names that a module defines or that it imports as `NAME as NAME`."""
    for node in ast.walk(ast.parse(Path(str(import_module(module).__file__)).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield from (name.name for name in node.names if name.asname == name.name)
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name


PUBLIC: Final[dict[str, Any]] = {
    f"{module}.{name}": getattr(import_module(module), name) for module in MODULES for name in names_of(module)
} | {"pdp.client.Client": Client, "pdp.client.RemotePep": RemotePep}


def examples_of(name: str) -> list[doctest.DocTest]:
    """Return the docstring examples of a public class or function. The examples of a class include its methods'."""
    tests = doctest.DocTestFinder().find(PUBLIC[name], name, module=inspect.getmodule(PUBLIC[name]))
    return [test for test in tests if test.examples]


def is_record(value: Any) -> bool:
    """Return whether a class only holds data: an exception, an enumeration, a named tuple or a dataclass."""
    kinds = (BaseException, enum.Enum, tuple)
    return inspect.isclass(value) and (issubclass(value, kinds) or dataclasses.is_dataclass(value))


@pytest.fixture
def _in_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a copy of the payments example, because examples write files."""
    for folder in ("examples/payments", "bundles"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    monkeypatch.chdir(tmp_path / "examples/payments")


CALLABLE: Final = [name for name, value in PUBLIC.items() if callable(value)]


@pytest.mark.usefixtures("_in_example")
@pytest.mark.parametrize("name", [name for name in CALLABLE if examples_of(name)])
def test_docstring_examples_run(name: str) -> None:
    runner, report = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS), list[str]()

    for test in examples_of(name):
        runner.run(test, out=report.append)

    assert not runner.failures, "".join(report)


@pytest.mark.parametrize("name", [name for name in CALLABLE if not is_record(PUBLIC[name])])
def test_public_class_or_function_has_an_example(name: str) -> None:
    assert ">>> " in (PUBLIC[name].__doc__ or ""), f"add an example to the docstring of {name}"


def test_pdp_exports_exactly_its_public_names() -> None:
    names = {name.removeprefix("pdp.") for name in PUBLIC if name.count(".") == 1}

    assert names == set(import_module("pdp").__all__)
