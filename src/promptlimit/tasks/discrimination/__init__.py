"""Discrimination in context: the task, and the rules for its risks."""

from promptlimit.tasks.discrimination._law import error_rate as error_rate
from promptlimit.tasks.discrimination._limit_risk import ScoreObjective as ScoreObjective
from promptlimit.tasks.discrimination._task import Discrimination as Discrimination
from promptlimit.tasks.discrimination._task import ScoreCoordinates as ScoreCoordinates
from promptlimit.tasks.discrimination._task import block_head as block_head
