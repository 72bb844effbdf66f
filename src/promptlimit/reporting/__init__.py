"""Results become pictures and pages. Nothing is computed here, and jax is not imported."""

from promptlimit.reporting._drawing import FORMATS as FORMATS
from promptlimit.reporting._drawing import draw as draw
from promptlimit.reporting._drawing import render as render
from promptlimit.reporting.page import write_page as write_page
