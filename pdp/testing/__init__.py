"""The conformance suite for enforcement points.

- conformance/: the cases, their test world, the runner, and the table of results
"""

from pdp.testing.conformance.cases import CASES as CASES
from pdp.testing.conformance.run import run as run
from pdp.testing.conformance.table import row as row
from pdp.testing.conformance.table import table as table
from pdp.testing.conformance.target import Observed as Observed
from pdp.testing.conformance.world import run_body as run_body
