"""What tests of enforcement points need: one suite for every enforcement point.

- conformance/: the suite: its cases, its world, how it runs, the table of results
"""

from pdp.testing.conformance.cases import CASES as CASES
from pdp.testing.conformance.run import run as run
from pdp.testing.conformance.table import row as row
from pdp.testing.conformance.table import table as table
from pdp.testing.conformance.target import Observed as Observed
from pdp.testing.conformance.world import run_body as run_body
