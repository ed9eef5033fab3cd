"""Run the suite on targets and write their rows into docs/enforcement-points.md: python -m tests.conformance [NAME...].

A name is the first cell of a row, or that of an adapter whose framework is installed here, such as `langchain`
(`scripts/adapters --table` does that in each one's environment). Without names: all rows that are no adapter's.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from pdp.testing.conformance.table import row
from tests.adapters.targets import ADAPTERS, adapter_target, row_of
from tests.conformance.page import outcome, page_rows, write_page


def main(names: list[str]) -> str | None:
    """Write the rows and return what failed."""
    chosen = {row_of(name): adapter_target(name) for name in names if name in ADAPTERS}
    if len(chosen) < max(len(names), 1):
        from tests.conformance.targets import TARGETS  # what they need is not in each framework's environment

        own = {target.name: target for target in TARGETS}
        chosen |= {name: own[name] for name in names if name not in ADAPTERS} if names else own
    found = {}
    for number, (name, target) in enumerate(chosen.items()):
        with TemporaryDirectory() as folder:
            found[name] = row(target, outcome(target, Path(folder, str(number))))
    kept = {name: cells for name, cells in page_rows().items() if names or "pdp.adapters." in name}
    write_page(dict(sorted({**kept, **found}.items(), key=lambda each: each[0].partition("pdp.adapters.")[2])))
    failed = [f"{name}: {case}: {cell}" for name, row in found.items() for case, cell in row.items() if "fail" in cell]
    return "\n".join(failed) or None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
