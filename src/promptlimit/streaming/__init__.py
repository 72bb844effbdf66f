"""Attention over prompts that do not fit in memory, computed block by block in one pass."""

from promptlimit.storage import Progress as Progress
from promptlimit.streaming._prompts import Generated as Generated
from promptlimit.streaming._prompts import stored_length as stored_length
from promptlimit.streaming._stream import stream as stream
from promptlimit.streaming._stream import stream_report as stream_report
