"""Results: what a number is, how sure it is, and how it reaches the disk. No jax here."""

from promptlimit.results._claims import Check as Check
from promptlimit.results._claims import ClaimResult as ClaimResult
from promptlimit.results._claims import Verdict as Verdict
from promptlimit.results._files import InputFileError as InputFileError
from promptlimit.results._files import read_arrays as read_arrays
from promptlimit.results._files import write_bytes as write_bytes
from promptlimit.results._files import write_json as write_json
from promptlimit.results._gaps import GapCurve as GapCurve
from promptlimit.results._gaps import GapExponent as GapExponent
from promptlimit.results._gaps import GapReport as GapReport
from promptlimit.results._gaps import RequiredLength as RequiredLength
from promptlimit.results._kinds import Kind as Kind
from promptlimit.results._limits import Limits as Limits
from promptlimit.results._moments import GradientMoments as GradientMoments
from promptlimit.results._moments import PromptMoments as PromptMoments
from promptlimit.results._rates import RateFit as RateFit
from promptlimit.results._rates import RateStatus as RateStatus
from promptlimit.results._risks import Risk as Risk
from promptlimit.results._risks import RiskGradient as RiskGradient
from promptlimit.results._runs import environment as environment
from promptlimit.results._runs import is_finished as is_finished
from promptlimit.results._runs import load_run as load_run
from promptlimit.results._runs import run_name as run_name
from promptlimit.results._runs import save_run as save_run
from promptlimit.results._trajectory import Trajectory as Trajectory
