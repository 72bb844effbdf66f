"""Objects of the library in files, without pickle: laws, attentions, tasks, plans and results."""

from promptlimit.files._objects import load as load
from promptlimit.files._objects import savable as savable
from promptlimit.files._objects import save as save
