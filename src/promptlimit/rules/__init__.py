"""Rules: the methods for computing a quantity, when each applies, and which rule a call uses."""

from promptlimit.rules._effort import Effort as Effort
from promptlimit.rules._rules import Explanation as Explanation
from promptlimit.rules._rules import OutOfScope as OutOfScope
from promptlimit.rules._rules import Quantity as Quantity
from promptlimit.rules._rules import Rule as Rule
from promptlimit.rules._rules import applies_always as applies_always
from promptlimit.rules._rules import computes as computes
from promptlimit.rules._rules import explain as explain
from promptlimit.rules._rules import unwrap as unwrap
