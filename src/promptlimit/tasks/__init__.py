"""In-context tasks: the law of a prompt, a query and a loss; exact risks and baselines."""

from promptlimit.tasks._abstract import AbstractTask as AbstractTask
from promptlimit.tasks._bayes import bayes_risk as bayes_risk
from promptlimit.tasks._optimum import LinearOptimum as LinearOptimum
from promptlimit.tasks._optimum import linear_optimum as linear_optimum
from promptlimit.tasks._regression import AbstractRegression as AbstractRegression
from promptlimit.tasks._regression import CovariateRegression as CovariateRegression
from promptlimit.tasks._regression import LinearRegression as LinearRegression
from promptlimit.tasks._regression import require_regression as require_regression
from promptlimit.tasks._risk import risk as risk
from promptlimit.tasks._risk_function import LinearRisk as LinearRisk
from promptlimit.tasks._risk_function import risk_function as risk_function
from promptlimit.tasks._risk_gradient import risk_gradient as risk_gradient
from promptlimit.tasks._softmax_risk import SoftmaxRisk as SoftmaxRisk
from promptlimit.tasks._softmax_risk import tabulate_risks as tabulate_risks
