"""Pages: one self-contained HTML file each, from results, with nothing computed."""

from promptlimit.reporting.page._explorer import explorer_page as explorer_page
from promptlimit.reporting.page._head_marks import HeadMarks as HeadMarks
from promptlimit.reporting.page._heads import HEAD_FIGURES as HEAD_FIGURES
from promptlimit.reporting.page._heads import heads_page as heads_page
from promptlimit.reporting.page._heads import write_heads_page as write_heads_page
from promptlimit.reporting.page._report import report_pages as report_pages
from promptlimit.reporting.page._svg import is_drawing as is_drawing
