"""Experiments: problems a user brings, claims of the paper, and the data behind the figures."""

from promptlimit.experiments._problems import EXAMPLES as EXAMPLES
from promptlimit.experiments._problems import Problem as Problem
from promptlimit.experiments._problems import limits as limits
from promptlimit.experiments._problems import problem_from_arrays as problem_from_arrays
from promptlimit.experiments._protocol import protocol_task as protocol_task
from promptlimit.experiments._registry import Claim as Claim
from promptlimit.experiments._registry import FigureRecipe as FigureRecipe
from promptlimit.experiments._registry import all_claims as all_claims
from promptlimit.experiments._registry import all_figures as all_figures
from promptlimit.experiments._registry import decide as decide
from promptlimit.experiments._registry import figure_data as figure_data
from promptlimit.experiments._regressions import correlated as correlated
from promptlimit.experiments._regressions import flow_times as flow_times
