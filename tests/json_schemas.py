"""A small validator for the keywords of JSON schema that this library uses."""

from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "number": (int, float),
    "integer": (int,),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}


def problems(value: Any, schema: dict[str, Any], root: dict[str, Any], at: str = "$") -> list[str]:
    """Return the places where a value does not satisfy a schema."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        return problems(value, root["$defs"][name], root, at)
    found = []
    if "anyOf" in schema:
        tried = [problems(value, choice, root, at) for choice in schema["anyOf"]]
        found += [] if [] in tried else min(tried, key=len)
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{at}: {value!r} is not one of {schema['enum']}")
    types = schema.get("type", [])
    allowed = [types] if isinstance(types, str) else types
    if allowed and not any(_is(value, name) for name in allowed):
        return [*found, f"{at}: {value!r:.60} is not {' or '.join(allowed)}"]
    if isinstance(value, dict):
        found += _object_problems(value, schema, root, at)
    if isinstance(value, list):
        fixed, rest = schema.get("prefixItems", []), schema.get("items", {})
        if rest is False and len(value) > len(fixed):
            found.append(f"{at}: {len(value)} entries")
        for place, part in enumerate(value):
            entry = fixed[place] if place < len(fixed) else rest
            found += problems(part, entry or {}, root, f"{at}[{place}]")
    return found


def _object_problems(
    value: dict[str, Any], schema: dict[str, Any], root: dict[str, Any], at: str
) -> list[str]:
    known, further = schema.get("properties", {}), schema.get("additionalProperties", {})
    found = [f"{at}: no {name}" for name in schema.get("required", []) if name not in value]
    for name, part in value.items():
        if name not in known and further is False:
            found.append(f"{at}: {name} is not declared")
        else:
            found += problems(part, known.get(name, further), root, f"{at}.{name}")
    return found


def _is(value: Any, name: str) -> bool:
    is_flag = isinstance(value, bool) and name != "boolean"
    return isinstance(value, _TYPES[name]) and not is_flag
