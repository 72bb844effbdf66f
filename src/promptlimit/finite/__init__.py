"""What L tokens do to an attention: the moments and laws of its output over finite prompts."""

from typing import TYPE_CHECKING

from promptlimit._lazy import lazy_names

if TYPE_CHECKING:
    from promptlimit.finite._gradient_moments import GRADIENT_MOMENTS as GRADIENT_MOMENTS
    from promptlimit.finite._gradient_moments import gradient_moments as gradient_moments
    from promptlimit.finite._output_law import OUTPUT_LAW as OUTPUT_LAW
    from promptlimit.finite._output_law import output_law as output_law
    from promptlimit.finite._problem import HeadProblem as HeadProblem
    from promptlimit.finite._problem import Problem as Problem
    from promptlimit.finite._problem import checked_problem as checked_problem
    from promptlimit.finite._problem import first_obstacle as first_obstacle
    from promptlimit.finite._problem import known as known
    from promptlimit.finite._prompt_moments import PROMPT_MOMENTS as PROMPT_MOMENTS
    from promptlimit.finite._prompt_moments import NoLimitWarning as NoLimitWarning
    from promptlimit.finite._prompt_moments import prompt_moments as prompt_moments
    from promptlimit.finite._queries import Queries as Queries
    from promptlimit.finite._simulation import PromptSimulation as PromptSimulation
    from promptlimit.finite._simulation import UnreliableErrorWarning as UnreliableErrorWarning
    from promptlimit.finite._simulation import chunk_of_prompts as chunk_of_prompts
    from promptlimit.finite._simulation import numbers_of_prompt as numbers_of_prompt
    from promptlimit.finite._simulation import simulated_chunks as simulated_chunks
    from promptlimit.finite._simulation import tokens_that_fit as tokens_that_fit
    from promptlimit.finite._simulation import warn_when_unreliable as warn_when_unreliable
    from promptlimit.finite._softmax_moments import softmax_moments as softmax_moments
    from promptlimit.finite._stack_expansion import SlowExpansionWarning as SlowExpansionWarning

_HOME = {
    "GRADIENT_MOMENTS": "_gradient_moments",
    "OUTPUT_LAW": "_output_law",
    "NoLimitWarning": "_prompt_moments",
    "PROMPT_MOMENTS": "_prompt_moments",
    "Problem": "_problem",
    "PromptSimulation": "_simulation",
    "Queries": "_queries",
    "HeadProblem": "_problem",
    "SlowExpansionWarning": "_stack_expansion",
    "UnreliableErrorWarning": "_simulation",
    "checked_problem": "_problem",
    "chunk_of_prompts": "_simulation",
    "first_obstacle": "_problem",
    "gradient_moments": "_gradient_moments",
    "known": "_problem",
    "numbers_of_prompt": "_simulation",
    "output_law": "_output_law",
    "prompt_moments": "_prompt_moments",
    "simulated_chunks": "_simulation",
    "softmax_moments": "_softmax_moments",
    "tokens_that_fit": "_simulation",
    "warn_when_unreliable": "_simulation",
}

if not TYPE_CHECKING:  # which would let every name pass
    __getattr__, __dir__ = lazy_names(__name__, _HOME, globals())
