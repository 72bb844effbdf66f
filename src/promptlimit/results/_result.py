"""The base class `Result`, which derives exports, figures and comparisons from declared fields.

A subclass declares the axes of each of its arrays:

    class GapCurve(Result):
        lengths: np.ndarray = axis("length", "L", scale="log")
        value: np.ndarray = variable("length", label="squared gap", scale="log")
        error: np.ndarray = variable("length")
        limit_square: float

Here `lengths` contains the coordinates of the axis "length", usually a vector. If the coordinates
are a single number, or an array with several dimensions, each variable along the axis has these
dimensions in place of the axis.
"""

import csv
import dataclasses
import difflib
import html
import importlib
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping
from numbers import Real
from types import ModuleType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NamedTuple,
    TypeAlias,
    TypeVar,
    dataclass_transform,
    get_args,
)

import numpy as np

from promptlimit._text import text_table
from promptlimit.errors import ArgumentError, MissingPackageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Scale: TypeAlias = Literal["linear", "log", "symlog"]
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
ResultT = TypeVar("ResultT", bound="Result")

_EXTRAS = {"xarray": "'promptlimit[xarray]'"}
_ROLE = "__result_role__"
_SHOWN, _ROWS, _COLUMNS = 4, 10, 8
"""The largest number of array entries in a repr, and of rows and columns in an HTML table."""
_DASHES = ("-", "--", ":", "-.")


class Role(NamedTuple):
    """The declaration of a field, with the arguments of `axis`, `variable` or `scalar`.

    `axes` is None for a field that is not an array. `symbol` is the argument `label` of `axis`.
    """

    axes: tuple[str, ...] | None = None
    label: str = ""
    scale: Scale = "linear"
    is_axis: bool = False
    keeps: bool = False
    bulk: bool = False
    symbol: str = ""
    names: bool = False


def axis(name: str, label: str = "", *, scale: Scale = "linear", keeps: bool = False) -> Any:
    """Declare a field that holds the coordinates of an axis.

    Args:
        name: the name of the axis, used by variables.
        label: the symbol of the axis in figures.
        scale: the scale of the axis in figures.
        keeps: whether `Result.at` keeps the axis, with one entry, instead of removing it.
    """
    shown = f"{name} {label}".rstrip()
    return _declared(Role((name,), shown, scale, True, keeps, symbol=label, names=True))


def variable(
    *axes: str,
    label: str = "",
    scale: Scale = "linear",
    bulk: bool = False,
    names: bool = False,
    default: Any = dataclasses.MISSING,
) -> Any:
    """Declare an array, or a mapping of arrays, with named axes.

    Args:
        axes: the names of the first axes of the array. Further axes are named automatically.
        label: the label in figures.
        scale: the scale in figures.
        bulk: whether dictionaries and tables omit the array because it is large.
        names: whether the entries of the array are the names of the curves in a figure.
        default: the default of the field; None for an optional array.
    """
    return _declared(Role(axes, label, scale, bulk=bulk, names=names), default)


def scalar(label: str = "", *, bulk: bool = False, default: Any = dataclasses.MISSING) -> Any:
    """Declare a field without axes; required only for a label, `bulk` or a default.

    Args:
        label: the label of the number.
        bulk: whether the field is omitted from dictionaries and tables.
        default: the default of the field.
    """
    return _declared(Role(None, label, bulk=bulk), default)


def derived(
    *axes: str, label: str = "", scale: Scale = "linear"
) -> Callable[[FunctionT], FunctionT]:
    """Return a decorator for the getter of a property that is exported like a field.

    Args:
        axes: the names of the axes, as for `variable`; empty for a number or a string.
        label: the label in figures.
        scale: the scale in figures.
    """

    def mark(getter: FunctionT) -> FunctionT:
        setattr(getter, _ROLE, Role(axes or None, label, scale))
        return getter

    return mark


def derived_roles(cls: type) -> dict[str, Role]:
    """Return the declarations of the properties that `derived` marks, also in base classes."""
    return {
        name: getattr(member.fget, _ROLE)
        for base in reversed(cls.__mro__)
        for name, member in vars(base).items()
        if isinstance(member, property) and hasattr(member.fget, _ROLE)
    }


def _declared(role: Role, default: Any = dataclasses.MISSING) -> Any:
    return dataclasses.field(default=default, metadata={_ROLE: role})


def package(name: str, purpose: str) -> ModuleType:
    """Return a package, or raise `MissingPackageError` with the command that installs it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        root = name.partition(".")[0]
        raise MissingPackageError(
            f"`{purpose}` requires the package {root}, which is not installed. "
            f"Run pip install {_EXTRAS.get(root, root)}."
        ) from None


@dataclass_transform(
    frozen_default=True, eq_default=False, field_specifiers=(axis, variable, scalar)
)
class Result:
    """A frozen dataclass whose exports, figures and comparisons follow from its declared fields.

    Subclasses are dataclasses without a decorator, and their arrays are read-only. The method
    `interval` requires a `value` and an `error`, and `plot` requires a `value` with an axis.
    """

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)
        _require_axis_names(cls.__name__, cls._roles())

    def __post_init__(self) -> None:
        """Check that shapes fit the axes, and make all arrays read-only."""
        roles = self._roles()
        _require_shapes({name: (value, roles[name]) for name, value in vars(self).items()})
        for name, value in vars(self).items():
            object.__setattr__(self, name, _read_only(value))

    @classmethod
    def _roles(cls) -> dict[str, Role]:
        """Return the declarations of all fields, then of all derived properties."""
        fields: Any = dataclasses.fields(cls)  # ty: ignore[invalid-argument-type]
        roles = {field.name: field.metadata.get(_ROLE, Role()) for field in fields}
        return roles | derived_roles(cls)

    def __eq__(self, other: object) -> bool:
        """Compare all fields; arrays must have equal shapes and values, where NaN equals NaN."""
        if type(other) is not type(self):
            return NotImplemented
        return all(_equal(value, getattr(other, name)) for name, value in vars(self).items())

    __hash__ = None

    def to_dict(self) -> dict[str, Any]:
        """Return fields and derived properties as plain values; non-finite numbers become None."""
        return {
            name: plain(getattr(self, name))
            for name, role in self._roles().items()
            if not role.bulk
        }

    def to_json(self, indent: int | None = None) -> str:
        """Return `to_dict` as JSON."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return every numerical field as an array; entries of mappings are named "field.key"."""
        arrays = {name: array for name, _, array, role in self._labelled() if not role.bulk}
        arrays |= {name: np.array(value) for name, value in self._attributes().items()}
        for name, value in vars(self).items():
            parts = value.items() if isinstance(value, Mapping) else [("", value)]
            for key, part in parts:
                if isinstance(part, Result):
                    start = f"{name}.{key}" if key else name
                    arrays |= {f"{start}.{own}": array for own, array in part.to_arrays().items()}
        return {name: array for name, array in arrays.items() if array.dtype.kind in "biuf"}

    def to_xarray(self) -> Any:
        """Return an `xarray.Dataset` with the axes, variables and labels of this result."""
        variables, coordinates = {}, {}
        for name, dims, array, role in self._labelled():
            attributes = {"long_name": role.label} if role.label else {}
            if role.is_axis and role.axes:
                coordinates[role.axes[0]] = (dims, array, attributes)
            else:
                variables[name] = (dims, array, attributes)
        return package("xarray", "to_xarray").Dataset(variables, coordinates, self._attributes())

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with one row per entry along the axes of `value`.

        A field that lacks one of these axes is repeated along it. A field with further axes has one
        column per entry along the further axes.
        """
        pandas = package("pandas", "to_pandas")
        index, columns = self._table()
        frame = pandas.DataFrame({**index, **columns})
        return frame.set_index(list(index)) if index else frame

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of `to_pandas`, each a flat dictionary of plain values."""
        index, columns = self._table()
        table = {name: column.tolist() for name, column in {**index, **columns}.items()}
        for row in zip(*table.values(), strict=True):
            yield dict(zip(table, row, strict=True))

    def to_csv(self) -> str:
        """Return the rows of `to_pandas` as comma-separated values, below a line of names."""
        rows = list(self.rows())
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()

    def table(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of the printed table, each a mapping from heading to value."""
        return self.rows()

    def notes(self) -> list[str]:
        """Return the sentences that are printed below the table."""
        return []

    def text(self) -> str:
        """Return the table and the notes, as commands print them."""
        return "\n".join([text_table(self.table()), *self.notes()])

    def _attributes(self) -> dict[str, Any]:
        """Return the fields that are a single number or string."""
        found = {n: getattr(self, n) for n, role in self._roles().items() if role.axes is None}
        return {n: v for n, v in found.items() if isinstance(v, bool | int | float | str)}

    def _dims(self) -> dict[str, tuple[str, ...]]:
        """Return the names of the dimensions of the coordinates of each axis."""
        dims = {}
        for name, role in self._roles().items():
            if role.is_axis and role.axes:
                own, count = role.axes[0], np.ndim(getattr(self, name))
                dims[own] = (own,) if count == 1 else tuple(f"{own}_{i}" for i in range(count))
        return dims

    def _names(self) -> dict[str, tuple[np.ndarray, Role]]:
        """Return, for each axis whose entries have names, these names and their declaration."""
        found = {}
        for name, role in self._roles().items():
            if role.names and role.axes and np.ndim(getattr(self, name)) == 1:
                found[role.axes[0]] = (np.asarray(getattr(self, name)), role)
        return found

    def _labelled(self) -> Iterator[tuple[str, tuple[str, ...], np.ndarray, Role]]:
        """Yield name, dimensions, array and declaration of every array, also inside mappings."""
        known = self._dims()
        for name, role in self._roles().items():
            value = getattr(self, name)
            if role.axes is None or value is None:
                continue
            dims = tuple(part for own in role.axes for part in known.get(own, (own,)))
            parts = value.items() if isinstance(value, Mapping) else [("", value)]
            for key, part in parts:
                array = np.asarray(part)
                further = _further(key or name, array.ndim - len(dims))
                yield f"{name}.{key}" if key else name, (*dims, *further), array, role

    def _table(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Return coordinates and fields as columns by name, with one row per entry of `value`."""
        entries = [entry for entry in self._labelled() if not entry[3].bulk]
        main = self._roles().get("value", Role()).axes
        if main is None:
            main = next((role.axes for *_, role in entries if not role.is_axis), ())
        known = self._dims()
        rows = tuple(part for own in main or () for part in known.get(own, (own,)))
        sizes = {
            d: n for _, dims, array, _ in entries for d, n in zip(dims, array.shape, strict=True)
        }
        shape = tuple(sizes[dim] for dim in rows)
        index = {dim: np.indices(shape)[place].ravel() for place, dim in enumerate(rows)}
        named = {dim: names for dim, (names, role) in self._names().items() if role.is_axis}
        columns: dict[str, np.ndarray] = {}
        for name, dims, array, role in entries:
            shared = [dim for dim in rows if dim in dims]
            further = [dim for dim in dims if dim not in rows]
            moved = np.transpose(array, [dims.index(dim) for dim in (*shared, *further)])
            spaced = [sizes[dim] if dim in shared else 1 for dim in rows]
            beyond = moved.shape[len(shared) :]
            full = np.broadcast_to(moved.reshape((*spaced, *beyond)), (*shape, *beyond))
            if role.is_axis and role.axes == dims and shared:
                index[dims[0]] = full.ravel()
            elif not (role.is_axis and further):
                for place in np.ndindex(*beyond):
                    marks = [
                        _number(named[dim][i]) if dim in named else str(i)
                        for dim, i in zip(further, place, strict=True)
                    ]
                    mark = f"[{','.join(marks)}]" if place else ""
                    columns[name + mark] = full[(..., *place)].ravel()
        if not rows:
            columns |= {name: np.array([value]) for name, value in self._attributes().items()}
        return index, columns

    def interval(self, k: float | int = 2.0) -> tuple[Any, Any]:  # noqa: PYI041 - run-time checks
        """Return `value - k error` and `value + k error`, as mappings if `value` is a mapping."""
        if not isinstance(k, Real) or not k >= 0:
            raise ArgumentError("k", f"must be a number of at least 0, got {k!r}.")
        value, error = (getattr(self, name, None) for name in ("value", "error"))
        if value is None or error is None:
            raise TypeError(f"`{type(self).__name__}` has no `value` with an `error`.")
        if isinstance(value, Mapping):
            low = {name: value[name] - k * error[name] for name in value}
            return low, {name: value[name] + k * error[name] for name in value}
        return value - k * error, value + k * error

    def at(self: ResultT, length: float | int) -> ResultT:  # noqa: PYI041 - run-time checks
        """Return this result at one of its lengths.

        Args:
            length: one of the lengths, possibly infinite.
        """
        roles = self._roles()
        found = [n for n, role in roles.items() if role.is_axis and role.axes == ("length",)]
        if not found:
            raise TypeError(f"`{type(self).__name__}` has no axis of lengths.")
        lengths = np.asarray(getattr(self, found[0]))
        where = lengths == length
        if not where.any():
            known = ", ".join(f"{known:g}" for known in np.unique(lengths))
            one = "one of " if np.unique(lengths).size > 1 else ""
            raise ArgumentError("length", f"must be {one}{known}, got {length}.")
        several = roles[found[0]].keeps or where.sum() > 1
        place = (where,) if several else tuple(int(i) for i in np.argwhere(where)[0])
        changes: dict[str, Any] = {}
        fields: Any = dataclasses.fields(self)  # ty: ignore[invalid-argument-type]
        for field in fields:
            axes, value = roles[field.name].axes or (), getattr(self, field.name)
            if isinstance(value, Mapping) and "length" in axes:
                changes[field.name] = {k: _select(v, axes, place) for k, v in value.items()}
            elif value is not None and "length" in axes:
                changes[field.name] = _like(_select(value, axes, place), value, field.type)
            elif field.name == "kind" and value == "exact" and "limit" in get_args(field.type):
                changes["kind"] = "limit" if math.isinf(length) else value
        return dataclasses.replace(self, **changes)  # ty: ignore[invalid-argument-type]

    def plot(self, ax: "Axes | None" = None, **style: Any) -> "Axes":
        """Draw `value` against its last axis that has numerical coordinates.

        There is one curve per entry along the other axes. The first axis whose entries have names
        determines the colour, and the second such axis the dashes. A band shows one `error`. The
        value at an infinite length or time is drawn as a dashed horizontal line. If no axis has
        numerical coordinates, a `value` with two axes is drawn as an image.

        Args:
            ax: matplotlib's axes; new ones when None.
            style: keywords for the style of the lines, as for `ax.plot`, or of the image, as for
                `ax.imshow`.
        """
        roles = self._roles()
        role = roles.get("value", Role())
        along = {r.axes[0]: (n, r) for n, r in roles.items() if r.is_axis and r.axes}
        along = {a: (n, r) for a, (n, r) in along.items() if _numerical(getattr(self, n))}
        own = next((name for name in reversed(role.axes or ()) if name in along), None)
        if own is None and role.axes is not None and np.ndim(getattr(self, "value", 0)) == 2:
            return self._draw_map(ax, role.axes, role.label, **style)
        if own is None:
            raise TypeError(f"`{type(self).__name__}` has no `value` along an axis to draw.")
        name, coordinate = along[own]
        x = np.asarray(getattr(self, name), dtype=np.float64)
        drawn = axes_for(ax, coordinate, role, x)
        lengths = getattr(self, "lengths", None)
        usual = f"L = {lengths:g}" if isinstance(lengths, float) else getattr(self, "kind", None)
        errors = {n: array for n, _, array, _ in self._labelled() if n.startswith("error")}
        for name, dims, value, _ in self._labelled():
            field, _, key = name.partition(".")
            if field != "value":
                continue
            error = errors.get(f"error.{key}" if key else "error", np.zeros(()))
            points = self._dims()[own]
            lines = _points_last(value, dims, points)
            bands = _points_last(np.broadcast_to(error, value.shape), dims, points)
            others = [dim for dim in dims if dim not in points]
            for place in np.ndindex(lines.shape[:-1]):
                named = self._line_style(dict(zip(others, place, strict=True)), key or usual)
                draw_curve(drawn, x.ravel(), lines[place], bands[place], **{**named, **style})
        return drawn

    def _line_style(self, place: Mapping[str, int], usual: str | None) -> dict[str, Any]:
        """Return the label, colour and dashes of the curve at the indices `place`, by axis.

        Of several curves that differ only along axes without names, only the first has a label.
        """
        named = {dim: entry for dim, entry in self._names().items() if dim in place}
        style: dict[str, Any] = {}
        parts = []
        for option, (dim, (names, role)) in zip(
            ("color", "linestyle"), named.items(), strict=False
        ):
            name = names[place[dim]]
            number = list(dict.fromkeys(names.tolist())).index(name)
            style[option] = f"C{number}" if option == "color" else _DASHES[number % len(_DASHES)]
            parts.append(f"{role.symbol} = {_number(name)}" if role.symbol else _number(name))
        first = all(index == 0 for dim, index in place.items() if dim not in named)
        return {**style, "label": (", ".join(parts) or usual) if first else None}

    def _draw_map(
        self, ax: "Axes | None", axes: tuple[str, ...], label: str, **style: Any
    ) -> "Axes":
        """Draw `value` as an image whose first axis points upwards."""
        up, right = axes
        drawn = axes_for(ax, Role(label=right), Role(label=up), np.arange(0.0))
        image_style: dict[str, Any] = {"origin": "lower", "aspect": "auto", **style}
        image = drawn.imshow(getattr(self, "value"), **image_style)  # noqa: B009 - not of every class
        drawn.figure.colorbar(image, ax=drawn, label=label)
        return drawn

    def __repr__(self) -> str:
        """Return class, kind, coordinates, the first values with errors, and single numbers."""
        return f"{type(self).__name__}({', '.join(self._summary())})"

    def _summary(self) -> Iterator[str]:
        roles = self._roles()
        value, error = getattr(self, "value", None), getattr(self, "error", None)
        if (kind := getattr(self, "kind", None)) is not None:
            yield f"kind={kind!r}"
        for name, role in roles.items():
            if role.is_axis:
                yield f"{name}={_short(getattr(self, name))}"
        if value is not None:
            yield f"value={_short(value, error)}"
        for name, found in self._attributes().items():
            if name not in {"kind", "value", "error"}:
                yield f"{name}={_short(found)}"

    def _repr_html_(self) -> str:
        """Return a small table, for notebooks."""
        index, columns = self._table()
        first = {name: columns[name] for name in ("value", "error") if name in columns}
        shown = {**index, **first, **columns}
        names = list(shown)[:_COLUMNS]
        count = max((shown[name].size for name in names), default=0)
        rows = [[_number(shown[name][i]) for name in names] for i in range(min(count, _ROWS))]
        if count > _ROWS:
            rows.append(["…"] * len(names))
        cells = "".join(
            f"<tr>{''.join(f'<td>{html.escape(x)}</td>' for x in r)}</tr>" for r in rows
        )
        head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
        details = ", ".join(f"{n} = {_short(v)}" for n, v in self._attributes().items())
        caption = html.escape(
            f"{type(self).__name__}: {details}" if details else type(self).__name__
        )
        return f"<table><caption>{caption}</caption><tr>{head}</tr>{cells}</table>"


def _require_axis_names(owner: str, roles: Mapping[str, Role]) -> None:
    """Raise an error if two fields declare the same axis, or if an axis is probably misspelt."""
    fields: dict[str, str] = {}
    for name, role in roles.items():
        for own in role.axes or ():
            if not isinstance(own, str) or not own.isidentifier():
                raise ArgumentError(
                    name, f"of {owner} must name its axes as Python names, got {own!r}."
                )
        if role.is_axis and role.axes:
            if role.axes[0] in fields:
                raise ArgumentError(
                    name,
                    f"of {owner} must declare another axis than `{fields[role.axes[0]]}`, got "
                    f"'{role.axes[0]}' for both.",
                )
            fields[role.axes[0]] = name
    for name, role in roles.items():
        for own in set(role.axes or ()) - set(fields):
            if near := difflib.get_close_matches(own, fields, n=1, cutoff=0.8):
                raise ArgumentError(
                    name,
                    f"of {owner} must have axes that are declared, got '{own}'. Did you mean "
                    f"'{near[0]}'?",
                )


def _require_shapes(fields: Mapping[str, tuple[Any, Role]]) -> None:
    """Raise an error for an array whose shape does not fit its axes.

    The coordinates of an axis determine its size. The size of an axis without coordinates is that
    of the first array along it. The axis "other_x" has the same size as the axis "x".
    """
    known = {
        role.axes[0]: (np.shape(value), name)
        for name, (value, role) in fields.items()
        if role.is_axis and role.axes and value is not None
    }
    for name, (value, role) in fields.items():
        for part in value.values() if isinstance(value, Mapping) else [value]:
            shape = getattr(part, "shape", () if isinstance(part, Real) else None)
            left = shape
            for own in role.axes or ():
                if left is None:
                    break
                length, source = known.setdefault(own.removeprefix("other_"), (left[:1], name))
                if left[: len(length)] != length:
                    raise ArgumentError(
                        name,
                        f"must have the shape {length} of `{source}` along '{own}', got an array "
                        f"of shape {shape}.",
                    )
                left = left[len(length) :]


def plain(value: Any) -> Any:
    """Return a value as numbers, lists, dictionaries and strings; non-finite floats become None.

    >>> plain({"value": np.array([1.0, np.inf]), "kind": "exact"})
    {'value': [1.0, None], 'kind': 'exact'}
    """
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if dataclasses.is_dataclass(value):
        return plain(vars(value))
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return [plain(part) for part in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    array = np.asarray(value)
    if array.dtype == object:
        raise TypeError(f"a result cannot export a {type(value).__name__} as plain values.")
    if array.dtype.kind == "f":
        missing = ~np.isfinite(array)
        array = array.astype(object)
        array[missing] = None
    return array.tolist()


def absolute(relative: Any, value: Any) -> np.ndarray:
    """Return `relative * |value|`; 0 if `relative` is 0, even if `value` is infinite."""
    with np.errstate(invalid="ignore"):
        return np.where(np.equal(relative, 0.0), 0.0, np.multiply(relative, np.abs(value)))


def axes_for(ax: "Axes | None", x: Role, y: Role, coordinates: np.ndarray) -> "Axes":
    """Return the axes to draw in, with labels and scales; new axes if `ax` is None."""
    drawn: Any = ax
    if ax is None:
        drawn = package("matplotlib.pyplot", "plot").subplots(layout="constrained")[1]
    drawn.set(xlabel=x.label, ylabel=y.label, yscale=y.scale)
    positive = coordinates[(coordinates > 0) & np.isfinite(coordinates)]
    if x.scale == "symlog" and positive.size > 1:
        drawn.set_xscale("symlog", linthresh=float(positive.min()))
    elif x.scale == "log" and positive.size:
        drawn.set_xscale("log")
    return drawn


def draw_curve(ax: "Axes", x: np.ndarray, y: np.ndarray, error: np.ndarray, **style: Any) -> None:
    """Draw y against x with a band of one error.

    The value at x = inf is drawn as a dashed horizontal line.
    """
    logarithmic = ax.get_yscale() == "log"
    seen = np.isfinite(y) & ((y > 0.0) | (not logarithmic))
    inside = np.isfinite(x) & seen
    if inside.sum() == 1:
        style = {"marker": "o", **style}
    (line,) = ax.plot(x[inside], y[inside], **style)
    band = np.nan_to_num(error[inside])
    if np.any(band > 0):
        low, high = y[inside] - band, y[inside] + band
        ax.fill_between(x[inside], low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    for level in y[~np.isfinite(x) & seen]:
        ax.axhline(level, color=line.get_color(), linestyle="--", linewidth=1)


def _numerical(coordinates: object) -> bool:
    return np.asarray(coordinates).dtype.kind in "biuf"


def _points_last(array: np.ndarray, dims: tuple[str, ...], points: tuple[str, ...]) -> np.ndarray:
    """Return an array with the dimensions `points` moved to the end and flattened into one axis."""
    others = [dim for dim in dims if dim not in points]
    moved = np.transpose(array, [dims.index(dim) for dim in (*others, *points)])
    return moved.reshape(*moved.shape[: len(others)], -1)


def _further(name: str, count: int) -> tuple[str, ...]:
    """Return names for `count` undeclared axes: "row" and "column", or numbers if more than two."""
    words = ("row", "column") if count <= 2 else tuple(f"axis_{i}" for i in range(count))
    return tuple(f"{name}.{word}" for word in words[:count])


def _read_only(value: Any) -> Any:
    """Return a value in which read-only copies replace writeable arrays."""
    if isinstance(value, np.ndarray) and value.flags.writeable:
        value = value.copy()
        value.flags.writeable = False
    elif isinstance(value, Mapping):
        return {key: _read_only(part) for key, part in value.items()}
    return value


def _select(value: object, axes: tuple[str, ...], place: tuple[Any, ...]) -> np.ndarray:
    """Return the entries of an array at the index `place` along each axis of lengths."""
    array = np.asarray(value)
    for position in reversed([i for i, own in enumerate(axes) if own.endswith("length")]):
        array = array[(*[slice(None)] * position, *place)]
    return np.asarray(array)


def _like(array: np.ndarray, old: object, annotation: object) -> object:
    """Return an array in the type of the field that it replaces: tuple, number or array."""
    if isinstance(old, tuple):
        return tuple(array.tolist())
    numbers = {float, int} & set(get_args(annotation))
    return array.item() if array.ndim == 0 and numbers else array


def _equal(one: object, other: object) -> bool:
    if isinstance(one, Mapping):
        same = isinstance(other, Mapping) and one.keys() == other.keys()
        return same and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        if not isinstance(other, tuple | list) or len(one) != len(other):
            return False
        return all(_equal(*pair) for pair in zip(one, other, strict=True))
    if isinstance(one, np.ndarray | float) or isinstance(other, np.ndarray | float):
        a, b = np.asarray(one), np.asarray(other)
        numbers = a.dtype.kind in "biuf" and b.dtype.kind in "biuf"
        comparable = numbers or a.dtype.kind == b.dtype.kind
        return comparable and np.array_equal(a, b, equal_nan=numbers)
    return bool(one == other)


def _short(value: object, error: Any = None) -> str:
    """Return a number, a text or the first entries of an array, each with its error."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(list(value)[:_SHOWN])}}}"
    if isinstance(value, str):
        return repr(value if len(value) <= 40 else value[:39] + "…")
    array = np.asarray(value)
    errors = np.zeros(array.shape) if error is None else np.broadcast_to(error, array.shape)
    pairs = list(zip(array.flat, errors.flat, strict=True))[:_SHOWN]
    text = ", ".join(_number(x) + (f" ± {e:.1g}" if e > 0 else "") for x, e in pairs)
    if array.ndim == 0:
        return text
    more = ", …" if array.size > _SHOWN else ""
    shape = f" shape {array.shape}" if array.ndim > 1 else ""
    return f"[{text}{more}]{shape}"


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float | np.floating) else str(value)
