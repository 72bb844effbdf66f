"""Figures and pages of results. This package does not use jax and computes no results."""

from promptlimit.reporting._curves import plot_series as plot_series
from promptlimit.reporting._drawing import FORMATS as FORMATS
from promptlimit.reporting._drawing import QUICK_FORMATS as QUICK_FORMATS
from promptlimit.reporting._drawing import Format as Format
from promptlimit.reporting._drawing import draw as draw
from promptlimit.reporting._drawing import figure_of as figure_of
from promptlimit.reporting._drawing import render as render
from promptlimit.reporting._theme import CONTRAST as CONTRAST
from promptlimit.reporting._theme import FAINT as FAINT
from promptlimit.reporting._theme import FOURTH as FOURTH
from promptlimit.reporting._theme import INK as INK
from promptlimit.reporting._theme import LIMIT as LIMIT
from promptlimit.reporting._theme import LINEAR as LINEAR
from promptlimit.reporting._theme import SOFTMAX as SOFTMAX
from promptlimit.reporting._theme import THIRD as THIRD
from promptlimit.reporting._theme import painted as painted
from promptlimit.reporting._theme import selectable as selectable
from promptlimit.reporting._theme import shades as shades
from promptlimit.reporting._theme import theme as theme
from promptlimit.reporting.page import HeadMarks as HeadMarks
from promptlimit.reporting.page import explorer_page as explorer_page
from promptlimit.reporting.page import heads_page as heads_page
from promptlimit.reporting.page import is_drawing as is_drawing
from promptlimit.reporting.page import report_pages as report_pages
from promptlimit.reporting.page import unconverted_tex as unconverted_tex
from promptlimit.reporting.page import write_heads_page as write_heads_page
