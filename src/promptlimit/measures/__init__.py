"""Measures on tokens. A prompt is a measure; attention depends on its log-Laplace transform."""

from promptlimit.measures._abstract import AbstractMeasure as AbstractMeasure
from promptlimit.measures._abstract import AbstractRayTransform as AbstractRayTransform
from promptlimit.measures._abstract import has_transform as has_transform
from promptlimit.measures._abstract import is_infinite as is_infinite
from promptlimit.measures._abstract import outside_domain as outside_domain
from promptlimit.measures._abstract import require_in_domain as require_in_domain
from promptlimit.measures._abstract import require_moments as require_moments
from promptlimit.measures._affine import Affine as Affine
from promptlimit.measures._compiled import compiled as compiled
from promptlimit.measures._compiled import full_precision as full_precision
from promptlimit.measures._components import require_measure as require_measure
from promptlimit.measures._covariances import ar1_covariance as ar1_covariance
from promptlimit.measures._cubes import Rademacher as Rademacher
from promptlimit.measures._cubes import UniformCube as UniformCube
from promptlimit.measures._empirical import Empirical as Empirical
from promptlimit.measures._gaussian import Gaussian as Gaussian
from promptlimit.measures._gaussian import require_covariance as require_covariance
from promptlimit.measures._gaussian_parts import GaussianParts as GaussianParts
from promptlimit.measures._gaussian_parts import sqrtm_psd as sqrtm_psd
from promptlimit.measures._gaussian_quadratic import GaussianQuadratic as GaussianQuadratic
from promptlimit.measures._mixture import Mixture as Mixture
from promptlimit.measures._product import Product as Product
from promptlimit.measures._sphere import UniformSphere as UniformSphere
from promptlimit.measures._variance_proxies import VarianceProxy as VarianceProxy
