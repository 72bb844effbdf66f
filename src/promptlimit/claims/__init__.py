"""Results of studies: claims, the checks that decide them, figures, and folders that store them.

This package does not use jax.
"""

from promptlimit.claims._claims import Check as Check
from promptlimit.claims._claims import ClaimResult as ClaimResult
from promptlimit.claims._claims import Origin as Origin
from promptlimit.claims._claims import StoredClaim as StoredClaim
from promptlimit.claims._claims import StoredFailure as StoredFailure
from promptlimit.claims._claims import StoredFigure as StoredFigure
from promptlimit.claims._claims import StoredReport as StoredReport
from promptlimit.claims._claims import StoredStudy as StoredStudy
from promptlimit.claims._claims import Verdict as Verdict
from promptlimit.claims._claims import amended as amended
from promptlimit.claims._claims import at_least as at_least
from promptlimit.claims._claims import at_most as at_most
from promptlimit.claims._claims import control_at_least as control_at_least
from promptlimit.claims._claims import control_at_most as control_at_most
from promptlimit.claims._claims import figure_numbers as figure_numbers
from promptlimit.claims._report_folder import ReportFolder as ReportFolder
