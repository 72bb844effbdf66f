"""Gaps between finite and infinite prompts: values, rates, bounds, and required lengths."""

from promptlimit.concentration._bounds import covariance_bound as covariance_bound
from promptlimit.concentration._bounds import error_quantile as error_quantile
from promptlimit.concentration._bounds import error_tail as error_tail
from promptlimit.concentration._bounds import largest_token_bound as largest_token_bound
from promptlimit.concentration._bounds import limit_bound as limit_bound
from promptlimit.concentration._bounds import mean_bound as mean_bound
from promptlimit.concentration._bounds import output_bound as output_bound
from promptlimit.concentration._curves import TASK_EXPONENTS as TASK_EXPONENTS
from promptlimit.concentration._curves import TASK_GAPS as TASK_GAPS
from promptlimit.concentration._curves import GapValues as GapValues
from promptlimit.concentration._curves import TaskGapProblem as TaskGapProblem
from promptlimit.concentration._exact_gaps import gap_exponent as gap_exponent
from promptlimit.concentration._fit_rate import fit_rate as fit_rate
from promptlimit.concentration._gaps import GAPS as GAPS
from promptlimit.concentration._gaps import gradient_gap as gradient_gap
from promptlimit.concentration._gaps import output_gap as output_gap
from promptlimit.concentration._report import gap_report as gap_report
from promptlimit.concentration._required_length import required_length as required_length
