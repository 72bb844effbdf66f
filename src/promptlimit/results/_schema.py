"""The JSON schema of a result, derived from the declarations of its class."""

import collections.abc
import dataclasses
import inspect
import re
import types
import typing
from typing import Any, Literal

import numpy as np

from promptlimit.results._result import Result, Role, derived_roles

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_ENTRY: dict[str, Any] = {"type": ["number", "boolean", "string", "null"]}
_ARRAY: dict[str, Any] = {
    "description": "A number, or nested lists with one level per axis; null if not finite.",
    "anyOf": [_ENTRY, {"type": "array", "items": {"$ref": "#/$defs/array"}}],
}
_PLAIN = {bool: "boolean", int: "integer", str: "string", type(None): "null"}
_LISTS = (list, tuple, collections.abc.Sequence)
_MAPPINGS = (dict, collections.abc.Mapping)


def json_schema(annotation: Any) -> dict[str, Any]:
    """Return the JSON schema of values of a type, as `Result.to_dict` returns them.

    Args:
        annotation: a result class, a dataclass, or a type built from them, such as a list.

    >>> from promptlimit.results import Limits
    >>> sorted(json_schema(Limits)["properties"])
    ['distance', 'error', 'kind', 'linear', 'softmax']
    """
    definitions: dict[str, Any] = {}
    schema = _schema(annotation, definitions)
    top = schema.get("$ref", "").removeprefix("#/$defs/")
    schema = definitions.pop(top) if top in definitions else schema
    return {"$schema": _DIALECT, **schema, **({"$defs": definitions} if definitions else {})}


def _schema(annotation: Any, definitions: dict[str, Any]) -> dict[str, Any]:  # noqa: PLR0911
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return {"enum": list(parts)}
    if origin in (typing.Union, types.UnionType):
        choices = [_schema(part, definitions) for part in parts]
        return {"anyOf": [c for place, c in enumerate(choices) if c not in choices[:place]]}
    if origin in _MAPPINGS:
        return {"type": "object", "additionalProperties": _schema(parts[1], definitions)}
    if origin is tuple and parts[-1] is not Ellipsis:
        fixed = [_schema(part, definitions) for part in parts]
        return {"type": "array", "prefixItems": fixed, "items": False}
    if origin in _LISTS:
        return {"type": "array", "items": _schema(parts[0], definitions)}
    if annotation in _PLAIN:
        return {"type": _PLAIN[annotation]}
    if annotation is float:
        return {"type": ["number", "null"]}
    if annotation is np.ndarray:
        definitions["array"] = _ARRAY
        return {"$ref": "#/$defs/array"}
    if dataclasses.is_dataclass(annotation):
        return _reference(annotation, definitions)
    return {}


def _reference(cls: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return a reference to the schema of a class; for an abstract class, of all its subclasses."""
    if inspect.isabstract(cls):
        return {"anyOf": [_reference(own, definitions) for own in cls.__subclasses__()]}
    name = cls.__name__
    if name not in definitions:
        definitions[name] = {}  # ends the recursion if a class contains itself
        definitions[name] = _object(cls, definitions)
    return {"$ref": f"#/$defs/{name}"}


def _object(cls: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    hints, words = typing.get_type_hints(cls), _attributes(cls)
    fields = {field.name: Role() for field in dataclasses.fields(cls)} | derived_roles(cls)
    roles = cls._roles() if issubclass(cls, Result) else fields
    properties = {}
    for name, role in roles.items():
        if role.bulk:
            continue
        member = inspect.getattr_static(cls, name, None)
        if isinstance(member, property):
            hint = typing.get_type_hints(member.fget)["return"]
            description = inspect.getdoc(member) or ""
        else:
            hint, description = hints[name], words.get(name, "")
        if not issubclass(cls, Result) and float in (hint, *typing.get_args(hint)):
            hint |= str  # claims distinguish infinity, "inf", from NaN
        axes = f"Axes: {', '.join(role.axes)}." if role.axes else ""
        said = " ".join(part for part in (description.partition("\n\n")[0], axes) if part)
        schema = _schema(hint, definitions)
        properties[name] = {"description": " ".join(said.split()), **schema} if said else schema
    return {
        "title": cls.__name__,
        "description": (inspect.getdoc(cls) or "").partition("\n")[0],
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _attributes(cls: Any) -> dict[str, str]:
    """Return the descriptions of attributes in the docstrings of a class and its bases."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        _, _, section = inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")
        entries = re.findall(r"^ {4}(\w+): (.*(?:\n {8,}.*)*)", section, re.MULTILINE)
        for name, words in entries:
            sentence = " ".join(words.split())
            found[name] = sentence[:1].upper() + sentence[1:]
    return found
