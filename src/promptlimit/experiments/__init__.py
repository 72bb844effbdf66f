"""Experiments: problems a user brings, claims of the paper, and the data behind the figures."""

from promptlimit.experiments._fingerprint import drawing_hash as drawing_hash
from promptlimit.experiments._fingerprint import engine_hash as engine_hash
from promptlimit.experiments._fingerprint import item_hash as item_hash
from promptlimit.experiments._gap_problems import GapProblem as GapProblem
from promptlimit.experiments._gap_problems import example_gap_problem as example_gap_problem
from promptlimit.experiments._gap_problems import gap_problem_from_arrays as gap_problem_from_arrays
from promptlimit.experiments._gap_problems import gap_report as gap_report
from promptlimit.experiments._gap_problems import standard_gap_problem as standard_gap_problem
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
from promptlimit.experiments._setting import Setting as Setting
from promptlimit.experiments._stream_problems import StreamProblem as StreamProblem
from promptlimit.experiments._stream_problems import drawn_stream_problem as drawn_stream_problem
from promptlimit.experiments._stream_problems import (
    stored_stream_problem as stored_stream_problem,
)
from promptlimit.experiments._stream_problems import stream_report as stream_report
from promptlimit.experiments._study import prepare as prepare
from promptlimit.experiments._study import study_parts as study_parts
