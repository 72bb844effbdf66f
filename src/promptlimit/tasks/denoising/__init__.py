"""Denoising with a Gaussian mixture: the tasks, and the rules for their risks."""

from promptlimit.tasks.denoising._best_layer import LARGEST_GATE as LARGEST_GATE
from promptlimit.tasks.denoising._best_layer import best_layer as best_layer
from promptlimit.tasks.denoising._heads import bayes_heads as bayes_heads
from promptlimit.tasks.denoising._heads import bayes_layer as bayes_layer
from promptlimit.tasks.denoising._heads import linear_denoiser as linear_denoiser
from promptlimit.tasks.denoising._limit_risk import LimitMap as LimitMap
from promptlimit.tasks.denoising._limit_risk import QueryPoints as QueryPoints
from promptlimit.tasks.denoising._limit_risk import limit_map as limit_map
from promptlimit.tasks.denoising._limit_risk import query_points as query_points
from promptlimit.tasks.denoising._risk import PromptObjective as PromptObjective
from promptlimit.tasks.denoising._task import Denoising as Denoising
from promptlimit.tasks.denoising._task import InContextDenoising as InContextDenoising
