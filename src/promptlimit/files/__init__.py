"""Objects of the library in files without pickle, and problems read from named arrays."""

from promptlimit.files._objects import load as load
from promptlimit.files._objects import savable as savable
from promptlimit.files._objects import save as save
from promptlimit.files._problems import AttentionProblem as AttentionProblem
from promptlimit.files._problems import example_problem as example_problem
from promptlimit.files._problems import example_stack as example_stack
from promptlimit.files._problems import read_problem as read_problem
from promptlimit.files._problems import standard_problem as standard_problem
