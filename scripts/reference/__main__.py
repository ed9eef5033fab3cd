"""Write the generated pages: `python -m scripts.reference FOLDER`."""

import argparse
from collections.abc import Iterator
from pathlib import Path

from scripts.reference import codes, commands, conformance, fields, http_api, operation, python_api


def pages() -> Iterator[tuple[str, str]]:
    """Yield the file name, relative to the folder, and the text of each page."""
    for part in (commands, fields, codes, http_api, python_api, operation, conformance):
        yield from part.pages()


def main(arguments: list[str] | None = None) -> None:
    """Write all pages into the folder of the command line."""
    parser = argparse.ArgumentParser(prog="python -m scripts.reference", description="Writes the generated pages.")
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args(arguments).folder
    for name, text in pages():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
