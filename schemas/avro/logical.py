"""Converts stored values of Avro's logical types to Python's objects, and back.

Reading never fails: a date or a time beyond Python's range is returned as the stored number, and a text that is no UUID
as text. Writing is strict: a value that a reader could not take is an error.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from numbers import Integral, Real
from typing import Any, Final
from uuid import UUID

from klamm.core.errors import SchemaError

from .model import AvroType, describe

Convert = Callable[[Any], Any]

EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
LOCAL_EPOCH: Final = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - a local time has no zone
_FIRST_DAY: Final = EPOCH.toordinal()
DAYS: Final = (dt.date.min.toordinal() - _FIRST_DAY, dt.date.max.toordinal() - _FIRST_DAY)
"""The range of `date` that can be sent: the years 1 to 9999, as in Python."""
_DAY: Final = 86_400_000_000
_MICROSECOND: Final = dt.timedelta(microseconds=1)
_EXACT: Final = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)
_UUID: Final = re.compile("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_FLOAT_MAX: Final = 3.4028235677973366e38
"""The least number that is rounded to the infinity of a `float`."""
WHOLE: Final = {"int": 2**31, "long": 2**63}
INSTANTS: Final = frozenset({"timestamp-millis", "timestamp-micros", "timestamp-nanos"})


def reader_of(avro: AvroType) -> Convert | None:
    """Returns a function that converts a stored value to Python's; None if the two are the same."""
    match avro.logical:
        case "date":
            return _date
        case "time-millis":
            return lambda stored: _time(stored * 1000, stored)
        case "time-micros":
            return lambda stored: _time(stored, stored)
        case "timestamp-millis":
            return lambda stored: _instant(EPOCH, stored * 1000, stored)
        case "timestamp-micros":
            return lambda stored: _instant(EPOCH, stored, stored)
        case "local-timestamp-millis":
            return lambda stored: _instant(LOCAL_EPOCH, stored * 1000, stored)
        case "local-timestamp-micros":
            return lambda stored: _instant(LOCAL_EPOCH, stored, stored)
        case "decimal":
            scale = -avro.scale
            return lambda stored: Decimal(int.from_bytes(stored, "big", signed=True)).scaleb(scale, _EXACT)
        case "uuid":
            return _uuid if avro.kind == "string" else lambda stored: UUID(bytes=stored)
        case _:
            return None


def _date(stored: int) -> Any:
    try:
        return dt.date.fromordinal(stored + _FIRST_DAY)
    except (ValueError, OverflowError):
        return stored


def _time(micros: int, stored: int) -> Any:
    return (LOCAL_EPOCH + dt.timedelta(0, 0, micros)).time() if 0 <= micros < _DAY else stored


def _instant(epoch: dt.datetime, micros: int, stored: int) -> Any:
    try:
        return epoch + dt.timedelta(0, 0, micros)
    except OverflowError:
        return stored


def _uuid(stored: str) -> Any:
    return UUID(stored) if _UUID.fullmatch(stored) else stored


def read_class(avro: AvroType) -> type | None:
    """Returns the class of the values that `reader_of` converts to, except for those that Python cannot represent; None
    for containers."""
    if avro.logical == "date":
        return dt.date
    if avro.logical.startswith("time-"):
        return dt.time
    if avro.logical.endswith("-nanos"):
        return int
    if "timestamp" in avro.logical:
        return dt.datetime
    if avro.logical in ("decimal", "uuid"):
        return Decimal if avro.logical == "decimal" else UUID
    return {"null": type(None), "boolean": bool, "int": int, "long": int, "float": float, "double": float,
            "string": str, "enum": str, "bytes": bytes, "fixed": bytes}.get(avro.kind)  # fmt: skip


def writer_of(avro: AvroType, at: str) -> Convert:
    """Returns a function that converts a Python value to the stored value. The function raises `SchemaError`, which
    names the field at path `at`, for a value that is not of the type (a primitive, an enum or a fixed)."""
    made = _Writer(avro, at)
    if avro.logical == "decimal":
        return made.decimal
    if avro.logical == "uuid":
        return made.uuid
    if avro.logical and avro.kind != "fixed":
        return made.time()
    return {
        "null": made.null, "boolean": made.boolean, "int": made.whole(), "long": made.whole(), "float": made.float32,
        "double": made.double, "string": made.text, "bytes": made.octets, "fixed": made.fixed, "enum": made.symbol,
    }[avro.kind]  # fmt: skip


class _Writer:
    """The conversions to one type."""

    def __init__(self, avro: AvroType, at: str) -> None:
        self._avro = avro
        self._at = at
        self._symbols = frozenset(avro.symbols)

    def wrong(self, value: Any, expected: str = "") -> SchemaError:
        return misfit(self._at, f"expected {expected or describe(self._avro)}, got {value!r:.200}")

    def null(self, value: Any) -> None:
        if value is not None:
            raise self.wrong(value)

    def boolean(self, value: Any) -> bool:
        if value.__class__ is bool:
            return bool(value)
        if getattr(getattr(value, "dtype", None), "kind", "") == "b" and value.ndim == 0:  # numpy.bool_
            return bool(value)
        raise self.wrong(value)

    def whole(self) -> Convert:
        limit = WHOLE.get(self._avro.kind, 0)

        def convert(value: Any) -> int:
            if value.__class__ is int and -limit <= value < limit:
                return int(value)
            if isinstance(value, bool) or not isinstance(value, Integral):
                raise self.wrong(value)
            if not -limit <= int(value) < limit:
                raise misfit(self._at, f"{value!r:.200} is too large for {describe(self._avro)}")
            return int(value)

        return convert

    def double(self, value: Any) -> float:
        if value.__class__ is float:
            return float(value)
        if isinstance(value, bool) or not isinstance(value, Real):
            raise self.wrong(value)
        try:
            return float(value)
        except OverflowError as error:
            raise misfit(self._at, f"{value!r:.200} is too large for {describe(self._avro)}") from error

    def float32(self, value: Any) -> float:
        number = self.double(value)
        if not -_FLOAT_MAX < number < _FLOAT_MAX and number - number == 0:
            raise misfit(self._at, f"{value!r} is too large for float")
        return number

    def text(self, value: Any) -> str:
        if not isinstance(value, str):
            raise self.wrong(value)
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise misfit(self._at, f"{value!r:.200} cannot be UTF-8: {error.reason}") from error
        return value

    def octets(self, value: Any) -> bytes:
        if value.__class__ is bytes:
            return bytes(value)
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        raise self.wrong(value)

    def fixed(self, value: Any) -> bytes:
        found = self.octets(value)
        if len(found) != self._avro.size:
            raise misfit(self._at, f"{len(found)} bytes, not the {self._avro.size} of {describe(self._avro)}")
        return found

    def symbol(self, value: Any) -> str:
        if not isinstance(value, str) or value not in self._symbols:
            known = ", ".join(self._avro.symbols)
            raise misfit(self._at, f"{value!r:.200} is no symbol of {describe(self._avro)}: {known:.500}")
        return value

    def decimal(self, value: Any) -> bytes:
        avro = self._avro
        if isinstance(value, Decimal) and value.is_finite():
            if value and value.adjusted() + avro.scale >= avro.precision:
                raise self._digits(value)
            scaled = value.scaleb(avro.scale, _EXACT)
            if scaled != scaled.to_integral_value():
                raise misfit(self._at, f"{value} has more than the {avro.scale} decimal places of {describe(avro)}")
            number = int(scaled)
            return number.to_bytes(avro.size or number.bit_length() // 8 + 1, "big", signed=True)
        if not isinstance(value, bytes | bytearray | memoryview) or not len(value):
            raise self.wrong(value, f"a Decimal for {describe(avro)}")
        if abs(int.from_bytes(value, "big", signed=True)) >= 10**avro.precision:
            raise self._digits(value)
        return self.fixed(value) if avro.kind == "fixed" else bytes(value)

    def _digits(self, value: Any) -> SchemaError:
        avro = self._avro
        return misfit(self._at, f"{value!r:.200} has more than the {avro.precision} digits of {describe(avro)}")

    def uuid(self, value: Any) -> Any:
        if isinstance(value, UUID):
            return str(value) if self._avro.kind == "string" else value.bytes
        if self._avro.kind == "fixed":
            return self.fixed(value)
        if isinstance(value, str) and _UUID.fullmatch(value):
            return value
        raise self.wrong(value, "a UUID")

    def time(self) -> Convert:
        logical = self._avro.logical
        if logical == "date":
            return self._object(DAYS, self._days, "a date")
        zone = "with a time zone" if logical in INSTANTS else "without a time zone"
        if logical.endswith("-nanos"):
            return self._object((-(2**63), 2**63 - 1), self._nanoseconds, f"a datetime {zone} or a whole number")
        micros = 1000 if logical.endswith("-millis") else 1
        if logical.startswith("time-"):
            return self._object((0, _DAY // micros - 1), lambda value: self._clock(value) // micros, "a time")
        bounds = (DAYS[0] * _DAY // micros, (DAYS[1] + 1) * _DAY // micros - 1)
        return self._object(bounds, lambda value: self._moment(value) // micros, f"a datetime {zone}")

    def _object(self, bounds: tuple[int, int], convert: Convert, expected: str) -> Convert:
        """Accepts a number only where every number is read as one (nanoseconds). Elsewhere it is most likely a mistake:
        of another unit, or another field's."""
        least, most = bounds
        read = reader_of(self._avro)

        def to_number(value: Any) -> int:
            if isinstance(value, dt.date | dt.time):
                number: int = convert(value)
            elif isinstance(value, Integral) and not isinstance(value, bool):
                number = int(value)
            else:
                raise self.wrong(value, f"{expected} for {describe(self._avro)}")
            if not least <= number <= most:
                raise misfit(self._at, f"{value!r:.200} is beyond the range of {describe(self._avro)}")
            if read is not None and isinstance(value, Integral):
                wanted = f"expected {expected} for {describe(self._avro)}, got the number {value}"
                raise misfit(self._at, f"{wanted}; the value that is stored as this number is {read(number)!r}")
            return number

        return to_number

    def _days(self, value: Any) -> int:
        if isinstance(value, dt.datetime | dt.time):
            raise self.wrong(value, "a date")
        return int(value.toordinal()) - _FIRST_DAY

    def _clock(self, value: Any) -> int:
        if not isinstance(value, dt.time) or value.tzinfo is not None:
            raise self.wrong(value, "a time without a time zone")
        return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond

    def _moment(self, value: Any) -> int:
        """Returns microseconds since 1970."""
        zoned = self._avro.logical in INSTANTS
        if not isinstance(value, dt.datetime) or value != value:  # pandas.NaT is a datetime, too
            raise self.wrong(value, "a datetime")
        if zoned and value.utcoffset() is None:
            raise misfit(
                self._at, f"{value!r} has no time zone, so it is no instant, as {self._avro.logical} is; "
                f"local-{self._avro.logical} takes it",
            )  # fmt: skip
        if not zoned and value.tzinfo is not None:
            raise misfit(
                self._at, f"{value!r} has a time zone, and {self._avro.logical} is a local time; "
                f"{self._avro.logical.removeprefix('local-')} takes it",
            )  # fmt: skip
        return (value - (EPOCH if zoned else LOCAL_EPOCH)) // _MICROSECOND

    def _nanoseconds(self, value: Any) -> int:
        """Returns nanoseconds since 1970; pandas' datetimes have them."""
        return self._moment(value) * 1000 + int(getattr(value, "nanosecond", 0))


def misfit(at: str, what: str) -> SchemaError:
    return SchemaError(f"field {at}: {what}" if at else what)
