"""The infinite-prompt limit of attention, and everything a finite prompt adds to it, exactly.

A prompt is a probability measure and attention is the gradient of its log-Laplace transform, so a
list of tokens and the law they are drawn from are two prompts for one and the same attention.

    import promptlimit as pl

Names load on first use: importing the package, or asking the command line for help, does not
import jax.
"""

import importlib
from typing import TYPE_CHECKING

from promptlimit._lazy import lazy_names
from promptlimit._version import __version__ as __version__

if TYPE_CHECKING:
    from promptlimit import attention as attention
    from promptlimit import concentration as concentration
    from promptlimit import depth as depth
    from promptlimit import dynamics as dynamics
    from promptlimit import finite as finite
    from promptlimit import heads as heads
    from promptlimit import lengths as lengths
    from promptlimit import measures as measures
    from promptlimit import parallel as parallel
    from promptlimit import results as results
    from promptlimit import streaming as streaming
    from promptlimit import tasks as tasks
    from promptlimit import weights as weights
    from promptlimit.attention import AbstractAttention as AbstractAttention
    from promptlimit.attention import AbstractHead as AbstractHead
    from promptlimit.attention import Factored as Factored
    from promptlimit.attention import GradientStructure as GradientStructure
    from promptlimit.attention import Layer as Layer
    from promptlimit.attention import LinearAttention as LinearAttention
    from promptlimit.attention import MultiHead as MultiHead
    from promptlimit.attention import SoftmaxAttention as SoftmaxAttention
    from promptlimit.attention import Stack as Stack
    from promptlimit.concentration import fit_rate as fit_rate
    from promptlimit.concentration import gap_exponent as gap_exponent
    from promptlimit.concentration import gradient_gap as gradient_gap
    from promptlimit.concentration import output_gap as output_gap
    from promptlimit.concentration import required_length as required_length
    from promptlimit.depth import depth_flow as depth_flow
    from promptlimit.dynamics import OutsideTheoremWarning as OutsideTheoremWarning
    from promptlimit.dynamics import TrainingPlan as TrainingPlan
    from promptlimit.dynamics import block_start as block_start
    from promptlimit.dynamics import flow_time as flow_time
    from promptlimit.dynamics import gradient_flow as gradient_flow
    from promptlimit.dynamics import sgd as sgd
    from promptlimit.dynamics import trajectory_gap as trajectory_gap
    from promptlimit.dynamics import uniform_factors as uniform_factors
    from promptlimit.finite import Effort as Effort
    from promptlimit.finite import NoLimitWarning as NoLimitWarning
    from promptlimit.finite import Problem as Problem
    from promptlimit.finite import Quantity as Quantity
    from promptlimit.finite import Rule as Rule
    from promptlimit.finite import SlowExpansionWarning as SlowExpansionWarning
    from promptlimit.finite import UnreliableErrorWarning as UnreliableErrorWarning
    from promptlimit.finite import gradient_moments as gradient_moments
    from promptlimit.finite import output_law as output_law
    from promptlimit.finite import prompt_moments as prompt_moments
    from promptlimit.lengths import GaussianScores as GaussianScores
    from promptlimit.lengths import ListedScores as ListedScores
    from promptlimit.lengths import TokenScores as TokenScores
    from promptlimit.lengths import entropy_prediction as entropy_prediction
    from promptlimit.lengths import inverse_temperature as inverse_temperature
    from promptlimit.lengths import length_statistics as length_statistics
    from promptlimit.lengths import temperature_table as temperature_table
    from promptlimit.measures import AbstractMeasure as AbstractMeasure
    from promptlimit.measures import Affine as Affine
    from promptlimit.measures import Empirical as Empirical
    from promptlimit.measures import Gaussian as Gaussian
    from promptlimit.measures import GaussianParts as GaussianParts
    from promptlimit.measures import Mixture as Mixture
    from promptlimit.measures import Product as Product
    from promptlimit.measures import Rademacher as Rademacher
    from promptlimit.measures import UniformCube as UniformCube
    from promptlimit.measures import UniformSphere as UniformSphere
    from promptlimit.measures import VarianceProxy as VarianceProxy
    from promptlimit.parallel import JoinError as JoinError
    from promptlimit.parallel import PeerLostError as PeerLostError
    from promptlimit.parallel import WriterError as WriterError
    from promptlimit.parallel import use_devices as use_devices
    from promptlimit.results import AccuracyError as AccuracyError
    from promptlimit.results import ConfigurationError as ConfigurationError
    from promptlimit.results import InputFileError as InputFileError
    from promptlimit.results import KindUnavailableError as KindUnavailableError
    from promptlimit.results import LawMismatchError as LawMismatchError
    from promptlimit.results import MissingPackageError as MissingPackageError
    from promptlimit.results import NotAnalyticError as NotAnalyticError
    from promptlimit.results import OutsideDomainError as OutsideDomainError
    from promptlimit.results import RunBusyError as RunBusyError
    from promptlimit.streaming import Generated as Generated
    from promptlimit.streaming import stream as stream
    from promptlimit.tasks import AbstractTask as AbstractTask
    from promptlimit.tasks import CovariateRegression as CovariateRegression
    from promptlimit.tasks import Denoising as Denoising
    from promptlimit.tasks import Discrimination as Discrimination
    from promptlimit.tasks import InContextDenoising as InContextDenoising
    from promptlimit.tasks import LinearRegression as LinearRegression
    from promptlimit.tasks import RotatedRegression as RotatedRegression
    from promptlimit.tasks import bayes_excess as bayes_excess
    from promptlimit.tasks import bayes_heads as bayes_heads
    from promptlimit.tasks import bayes_layer as bayes_layer
    from promptlimit.tasks import bayes_risk as bayes_risk
    from promptlimit.tasks import best_layer as best_layer
    from promptlimit.tasks import linear_denoiser as linear_denoiser
    from promptlimit.tasks import linear_optimum as linear_optimum
    from promptlimit.tasks import risk as risk
    from promptlimit.tasks import risk_function as risk_function
    from promptlimit.tasks import risk_gradient as risk_gradient
    from promptlimit.weights import WeightInterpolant as WeightInterpolant
    from promptlimit.weights import check_law as check_law
    from promptlimit.weights import weight_interpolant as weight_interpolant
    from promptlimit.weights import weight_statistics as weight_statistics

_HOME = {
    "AbstractAttention": "attention",
    "AbstractHead": "attention",
    "AbstractMeasure": "measures",
    "AbstractTask": "tasks",
    "AccuracyError": "results",
    "Affine": "measures",
    "ConfigurationError": "results",
    "CovariateRegression": "tasks",
    "Denoising": "tasks",
    "Discrimination": "tasks",
    "Effort": "finite",
    "Empirical": "measures",
    "Factored": "attention",
    "Gaussian": "measures",
    "GaussianParts": "measures",
    "GaussianScores": "lengths",
    "Generated": "streaming",
    "GradientStructure": "attention",
    "InContextDenoising": "tasks",
    "InputFileError": "results",
    "JoinError": "parallel",
    "KindUnavailableError": "results",
    "LawMismatchError": "results",
    "Layer": "attention",
    "LinearAttention": "attention",
    "LinearRegression": "tasks",
    "ListedScores": "lengths",
    "MissingPackageError": "results",
    "Mixture": "measures",
    "MultiHead": "attention",
    "NoLimitWarning": "finite",
    "NotAnalyticError": "results",
    "OutsideDomainError": "results",
    "OutsideTheoremWarning": "dynamics",
    "PeerLostError": "parallel",
    "Problem": "finite",
    "Product": "measures",
    "Quantity": "finite",
    "Rademacher": "measures",
    "RotatedRegression": "tasks",
    "Rule": "finite",
    "RunBusyError": "results",
    "SlowExpansionWarning": "finite",
    "SoftmaxAttention": "attention",
    "Stack": "attention",
    "TokenScores": "lengths",
    "TrainingPlan": "dynamics",
    "UniformCube": "measures",
    "UniformSphere": "measures",
    "UnreliableErrorWarning": "finite",
    "VarianceProxy": "measures",
    "WeightInterpolant": "weights",
    "WriterError": "parallel",
    "bayes_excess": "tasks",
    "bayes_heads": "tasks",
    "bayes_layer": "tasks",
    "bayes_risk": "tasks",
    "best_layer": "tasks",
    "block_start": "dynamics",
    "check_law": "weights",
    "depth_flow": "depth",
    "entropy_prediction": "lengths",
    "fit_rate": "concentration",
    "flow_time": "dynamics",
    "gap_exponent": "concentration",
    "gradient_flow": "dynamics",
    "gradient_gap": "concentration",
    "gradient_moments": "finite",
    "inverse_temperature": "lengths",
    "length_statistics": "lengths",
    "linear_denoiser": "tasks",
    "linear_optimum": "tasks",
    "output_gap": "concentration",
    "output_law": "finite",
    "prompt_moments": "finite",
    "required_length": "concentration",
    "risk": "tasks",
    "risk_function": "tasks",
    "risk_gradient": "tasks",
    "sgd": "dynamics",
    "use_devices": "parallel",
    "stream": "streaming",
    "temperature_table": "lengths",
    "trajectory_gap": "dynamics",
    "uniform_factors": "dynamics",
    "weight_interpolant": "weights",
    "weight_statistics": "weights",
}


_PACKAGES = (
    "attention",
    "concentration",
    "depth",
    "dynamics",
    "finite",
    "heads",
    "lengths",
    "measures",
    "parallel",
    "results",
    "streaming",
    "tasks",
    "weights",
)
"""Packages whose names are reached through them: `promptlimit.heads.load`."""

_load, _names = lazy_names(__name__, _HOME, globals())


def _attribute(name: str) -> object:
    if name in _PACKAGES:
        return importlib.import_module(f"promptlimit.{name}")
    return _load(name)


if not TYPE_CHECKING:  # which would let every name pass
    __getattr__ = _attribute


def __dir__() -> list[str]:
    return sorted([*_names(), *_PACKAGES, "__version__"])
