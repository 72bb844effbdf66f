"""Attention over prompts that are measures: softmax and linear heads, layers and stacks."""

from promptlimit.attention._abstract import AbstractAttention as AbstractAttention
from promptlimit.attention._abstract import array_names as array_names
from promptlimit.attention._abstract import require_affine_limit as require_affine_limit
from promptlimit.attention._abstract import require_matrix as require_matrix
from promptlimit.attention._factored import Factored as Factored
from promptlimit.attention._heads import AbstractHead as AbstractHead
from promptlimit.attention._heads import GradientStructure as GradientStructure
from promptlimit.attention._heads import LinearAttention as LinearAttention
from promptlimit.attention._heads import SoftmaxAttention as SoftmaxAttention
from promptlimit.attention._kernels import KernelName as KernelName
from promptlimit.attention._layer import Layer as Layer
from promptlimit.attention._limits import limits as limits
from promptlimit.attention._multi_head import MultiHead as MultiHead
from promptlimit.attention._stack import Stack as Stack
from promptlimit.attention._stack import attend_through as attend_through
