"""Training dynamics: gradient flow on exact risks, and the distance between trajectories."""

from promptlimit.dynamics._comparison import TrajectoryGap as TrajectoryGap
from promptlimit.dynamics._comparison import flow_time as flow_time
from promptlimit.dynamics._comparison import trajectory_gap as trajectory_gap
from promptlimit.dynamics._flow import gradient_flow as gradient_flow
from promptlimit.dynamics._stabilised import StabilisedRungeKutta as StabilisedRungeKutta
from promptlimit.dynamics._starts import OutsideTheoremWarning as OutsideTheoremWarning
from promptlimit.dynamics._starts import block_start as block_start
from promptlimit.dynamics._starts import uniform_factors as uniform_factors
from promptlimit.results import Trajectory as Trajectory
