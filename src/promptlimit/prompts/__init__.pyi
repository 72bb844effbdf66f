from ._abstract import AbstractPrompt as AbstractPrompt
from ._abstract import Cumulants as Cumulants
from ._abstract import Leading as Leading
from ._abstract import Readout as Readout
from ._markov_chain import MarkovChain as MarkovChain
from ._prompt import Prompt as Prompt
from ._prompt import PromptLaw as PromptLaw
from ._prompt import as_prompt as as_prompt
