"""Run the suite on targets and write their rows: python -m tests.conformance [NAME...].

The rows are in docs/reference/enforcement-points.yaml. NAME is the name of a row, or the name of an adapter whose
framework is installed, such as `langchain`. Without names, all rows except the rows of adapters are written.
`scripts/adapters --table` runs this module in the environment of each adapter.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from pdp.testing.conformance.table import row
from tests.adapters.targets import ADAPTERS, adapter_target, row_of
from tests.conformance.page import documented_rows, outcome, write_rows


def main(names: list[str]) -> str | None:
    """Write the rows of the named targets. Return a message that lists the failed cases, or None."""
    chosen = {row_of(name): adapter_target(name) for name in names if name in ADAPTERS}
    if len(chosen) < max(len(names), 1):
        # Import these targets here, because the environments of adapters lack the dependencies of these targets.
        from tests.conformance.targets import TARGETS

        own = {target.name: target for target in TARGETS}
        chosen |= {name: own[name] for name in names if name not in ADAPTERS} if names else own
    results = {}
    for number, (name, target) in enumerate(chosen.items()):
        with TemporaryDirectory() as folder:
            results[name] = row(target, outcome(target, Path(folder, str(number))))
    kept = {name: cells for name, cells in documented_rows().items() if names or "pdp.adapters." in name}
    write_rows(dict(sorted({**kept, **results}.items(), key=lambda each: each[0].partition("pdp.adapters.")[2])))
    failed = [
        f"{name}: {case}: {cell}" for name, row in results.items() for case, cell in row.items() if "fail" in cell
    ]
    return "\n".join(failed) or None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
