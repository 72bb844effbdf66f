"""In-context linear regression: the tasks, and the rules for their risks."""

from promptlimit.tasks.regression import _covariate_risk as _covariate_risk
from promptlimit.tasks.regression import _gaps as _gaps

# isort: split
from promptlimit.tasks.regression import _heads_risk as _heads_risk
from promptlimit.tasks.regression._batch_gradient import RegressionGradient as RegressionGradient
from promptlimit.tasks.regression._bayes import ridge_risk as ridge_risk
from promptlimit.tasks.regression._optimum import LINEAR_OPTIMUM as LINEAR_OPTIMUM
from promptlimit.tasks.regression._optimum import LinearOptimum as LinearOptimum
from promptlimit.tasks.regression._optimum import linear_optimum as linear_optimum
from promptlimit.tasks.regression._points import Nodes as Nodes
from promptlimit.tasks.regression._points import node_sets as node_sets
from promptlimit.tasks.regression._risk import LinearRisk as LinearRisk
from promptlimit.tasks.regression._risk import risk_function as risk_function
from promptlimit.tasks.regression._softmax_risk import SoftmaxRisk as SoftmaxRisk
from promptlimit.tasks.regression._softmax_risk import tabulate_risks as tabulate_risks
from promptlimit.tasks.regression._stack_risk import StackObjective as StackObjective
from promptlimit.tasks.regression._task import AbstractRegression as AbstractRegression
from promptlimit.tasks.regression._task import CovariateRegression as CovariateRegression
from promptlimit.tasks.regression._task import LinearRegression as LinearRegression
from promptlimit.tasks.regression._task import RotatedRegression as RotatedRegression
from promptlimit.tasks.regression._task import require_regression as require_regression
from promptlimit.tasks.regression._train_test import IsotropicRisk as IsotropicRisk
from promptlimit.tasks.regression._train_test import TrainTestRisk as TrainTestRisk
from promptlimit.tasks.regression._train_test import isotropic_risks as isotropic_risks
from promptlimit.tasks.regression._train_test import train_test_risk as train_test_risk
