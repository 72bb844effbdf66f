"""Problems a user brings to the command line."""

from promptlimit.experiments._gap_problems import GapProblem as GapProblem
from promptlimit.experiments._gap_problems import example_gap_problem as example_gap_problem
from promptlimit.experiments._gap_problems import gap_problem_from_arrays as gap_problem_from_arrays
from promptlimit.experiments._gap_problems import gap_report as gap_report
from promptlimit.experiments._gap_problems import standard_gap_problem as standard_gap_problem
from promptlimit.experiments._problems import EXAMPLES as EXAMPLES
from promptlimit.experiments._problems import Problem as Problem
from promptlimit.experiments._problems import limits as limits
from promptlimit.experiments._problems import problem_from_arrays as problem_from_arrays
from promptlimit.experiments._stream_problems import StreamProblem as StreamProblem
from promptlimit.experiments._stream_problems import drawn_stream_problem as drawn_stream_problem
from promptlimit.experiments._stream_problems import (
    stored_stream_problem as stored_stream_problem,
)
from promptlimit.experiments._stream_problems import stream_report as stream_report
from promptlimit.reproduction.large_prompt._protocol import protocol_task as protocol_task
from promptlimit.reproduction.large_prompt._regressions import correlated as correlated
from promptlimit.reproduction.large_prompt._regressions import flow_times as flow_times
