"""Training dynamics: gradient flow on exact risks, descent, and the distance between the two."""

from promptlimit.dynamics._comparison import BallGap as BallGap
from promptlimit.dynamics._comparison import LimitBand as LimitBand
from promptlimit.dynamics._comparison import TrajectoryGap as TrajectoryGap
from promptlimit.dynamics._comparison import ball_gap as ball_gap
from promptlimit.dynamics._comparison import excess_risk as excess_risk
from promptlimit.dynamics._comparison import limit_band as limit_band
from promptlimit.dynamics._comparison import smallest_length as smallest_length
from promptlimit.dynamics._comparison import trajectory_gap as trajectory_gap
from promptlimit.dynamics._flow import gradient_flow as gradient_flow
from promptlimit.dynamics._flow_rate import FlowRate as FlowRate
from promptlimit.dynamics._flow_rate import flow_rate as flow_rate
from promptlimit.dynamics._plan import FlowPlan as FlowPlan
from promptlimit.dynamics._plan import TrainingPlan as TrainingPlan
from promptlimit.dynamics._plan import flow_time as flow_time
from promptlimit.dynamics._sgd import sgd as sgd
from promptlimit.dynamics._stabilised import StabilisedRungeKutta as StabilisedRungeKutta
from promptlimit.dynamics._starts import block_defect as block_defect
from promptlimit.dynamics._starts import block_limit as block_limit
from promptlimit.dynamics._starts import block_start as block_start
from promptlimit.dynamics._starts import imbalance as imbalance
from promptlimit.dynamics._starts import uniform_factors as uniform_factors
from promptlimit.results import Training as Training
from promptlimit.results import Trajectory as Trajectory
from promptlimit.storage import Progress as Progress
