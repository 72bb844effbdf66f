"""Put the doctests of docstrings between code fences."""

import re

import griffe

_EXAMPLE = re.compile(r"(?m)^(?P<indent> *)>>> (?:.*\n?)(?:(?P=indent)\S.*\n?)*")


class Doctests(griffe.Extension):
    """Fence the doctests of every docstring before it is rendered as Markdown."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Rewrite one docstring."""
        if obj.docstring is not None and ">>>" in obj.docstring.value:
            obj.docstring.value = _EXAMPLE.sub(_fence, obj.docstring.value)


def _fence(match: re.Match[str]) -> str:
    indent, code = match["indent"], match[0].rstrip("\n")
    return f"{indent}```pycon\n{code}\n{indent}```\n"
