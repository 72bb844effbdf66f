"""Pages: self-contained HTML files that show stored results."""

from promptlimit.reporting.page._explorer import HeadMarks as HeadMarks
from promptlimit.reporting.page._explorer import explorer_page as explorer_page
from promptlimit.reporting.page._heads import HEAD_FIGURES as HEAD_FIGURES
from promptlimit.reporting.page._heads import heads_page as heads_page
from promptlimit.reporting.page._heads import write_heads_page as write_heads_page
from promptlimit.reporting.page._report import report_pages as report_pages
from promptlimit.reporting.page._report import unconverted_tex as unconverted_tex
from promptlimit.reporting.page._svg import is_drawing as is_drawing
