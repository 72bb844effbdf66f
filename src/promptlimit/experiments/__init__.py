"""Experiments: claims of the paper, and the data behind the figures."""

from promptlimit.experiments._fingerprint import drawing_hash as drawing_hash
from promptlimit.experiments._fingerprint import engine_hash as engine_hash
from promptlimit.experiments._fingerprint import item_hash as item_hash
from promptlimit.experiments._protocol import protocol_task as protocol_task
from promptlimit.experiments._registry import Claim as Claim
from promptlimit.experiments._registry import FigureRecipe as FigureRecipe
from promptlimit.experiments._registry import all_claims as all_claims
from promptlimit.experiments._registry import all_figures as all_figures
from promptlimit.experiments._registry import decide as decide
from promptlimit.experiments._registry import figure_data as figure_data
from promptlimit.experiments._regressions import correlated as correlated
from promptlimit.experiments._regressions import flow_times as flow_times
from promptlimit.experiments._setting import Setting as Setting
from promptlimit.experiments._study import prepare as prepare
from promptlimit.experiments._study import study_parts as study_parts
