"""Files on disk: atomic writes, arrays read without pickle, and run folders.

Files are not trusted when read. This package does not use jax.
"""

from promptlimit.storage._arrays import numbers_in_archive as numbers_in_archive
from promptlimit.storage._arrays import pack_nonfinite as pack_nonfinite
from promptlimit.storage._arrays import read_arrays as read_arrays
from promptlimit.storage._arrays import unpack_nonfinite as unpack_nonfinite
from promptlimit.storage._arrays import unpacked_arrays as unpacked_arrays
from promptlimit.storage._files import FULL_DISK as FULL_DISK
from promptlimit.storage._files import as_path as as_path
from promptlimit.storage._files import json_object as json_object
from promptlimit.storage._files import limited_bytes as limited_bytes
from promptlimit.storage._files import list_of as list_of
from promptlimit.storage._files import number_of as number_of
from promptlimit.storage._files import one_of as one_of
from promptlimit.storage._files import reason_of as reason_of
from promptlimit.storage._files import text_of as text_of
from promptlimit.storage._files import whole_of as whole_of
from promptlimit.storage._files import write_bytes as write_bytes
from promptlimit.storage._files import write_json as write_json
from promptlimit.storage._files import writing_to as writing_to
from promptlimit.storage._progress import Progress as Progress
from promptlimit.storage._progress import Watcher as Watcher
from promptlimit.storage._progress import watching as watching
from promptlimit.storage._run_folder import OPAQUE as OPAQUE
from promptlimit.storage._run_folder import RunFolder as RunFolder
from promptlimit.storage._run_folder import environment as environment
from promptlimit.storage._run_folder import require_configuration as require_configuration
from promptlimit.storage._run_folder import run_name as run_name
