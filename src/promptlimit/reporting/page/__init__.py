"""Pages: one self-contained HTML file each, from stored results, with nothing computed.

`Page`, `Section` and `Entry` say what is on a page and `page_text` writes it; `write_page` fills
one from a folder of claims and figures.
"""

from promptlimit.reporting.page._heads import heads_page as heads_page
from promptlimit.reporting.page._heads import write_heads_page as write_heads_page
from promptlimit.reporting.page._html import Html as Html
from promptlimit.reporting.page._html import element as element
from promptlimit.reporting.page._html import joined as joined
from promptlimit.reporting.page._report import report_page as report_page
from promptlimit.reporting.page._report import write_page as write_page
from promptlimit.reporting.page._report import write_report as write_report
from promptlimit.reporting.page._shell import Entry as Entry
from promptlimit.reporting.page._shell import Page as Page
from promptlimit.reporting.page._shell import Section as Section
from promptlimit.reporting.page._shell import page_text as page_text
from promptlimit.reporting.page._stored import StoredReport as StoredReport
from promptlimit.reporting.page._stored import read_report as read_report
from promptlimit.reporting.page._svg import safe_drawing as safe_drawing
