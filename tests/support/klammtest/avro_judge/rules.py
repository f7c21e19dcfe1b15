"""The differences between Klamm and Java's Avro that are wanted. `docs/schemas.md` has the same table."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from .klamm_avro import Refused
from .schemas import definitions, nodes

if TYPE_CHECKING:
    from .cases import Case
    from .comparison import Difference

NO_VALUE: Final = "no value in Java"
FIXED_UUID: Final = "UUIDs of 16 bytes"
YEARS: Final = "beyond Python's years"
NANOS: Final = "nanoseconds are numbers"
LONG_DECIMALS: Final = "decimals of more than 38 digits"
STORED: Final = "columns keep the stored form"
PLAIN: Final = "the branch of a plain value"
UNREADABLE: Final = "values that not everybody reads"
UNITS: Final = "units of time"
MEANINGS: Final = "logical types of another meaning"
DIGITS: Final = "decimals of too many digits"
NAMES: Final = "names of records"
FULL_NAMES: Final = "full names first"
ARROW: Final = "beyond a column's timestamps"
TEXT: Final = "bytes that are no text"
FIELD_ALIASES: Final = "aliases of fields"
RECURSIVE: Final = "types that contain themselves"
MOVED: Final = "moved namespaces in unions"
MET: Final = "aliases that meet in a union"
INSIDE: Final = "defaults within their own record"
NO_FIELDS: Final = "records without fields"
DEFAULTS: Final = "defaults of enum, fixed and bytes"
OTHER_DEFAULT: Final = "defaults of another branch"
ASCII: Final = "names beyond ASCII"
AHEAD: Final = "names before their definition"
TWICE: Final = "names defined twice"

RULES: Final[dict[str, str]] = {
    UNITS: "A reader's unit of time that is not the writer's: Klamm converts the number, Java takes it for one of the "
    "reader's unit, wrong by a factor of 1,000 or more.",
    MEANINGS: "A reader's logical type that stands for something else than the writer's (`date`, `timestamp-millis`; "
    "`time-millis`, `date`; decimals of another scale or of fewer digits): Klamm refuses it, in the check of "
    "compatibility too; Java takes the number for one of the reader's type.",
    DIGITS: "A decimal with more digits than its type has: Klamm refuses to write it, and to read it into a column, "
    "whose type holds no more; records have it, as Java does.",
    UNREADABLE: "Values that Java's encoder writes and its conversions, Python or SQL cannot read (a date beyond the "
    "years 1 to 9999, a time of day beyond 24 hours, text that is no UUID): Klamm refuses to write them, unless a "
    "union has another branch for the number or the text.",
    NO_VALUE: "The same values written by others, and a decimal of no bytes: Java's conversions fail; Klamm reads the "
    "number or the text, and 0.",
    YEARS: "A date or timestamp beyond the years 1 to 9999: Java has an object for it, Klamm's records the number.",
    ARROW: "A timestamp in milliseconds that is beyond 64 bits as microseconds: no column can have it; records can.",
    NANOS: "Nanoseconds: records and columns have the number, since Python's and Spark's times end at microseconds.",
    STORED: "Times of day and UUIDs: columns have the number and the text, since Spark has no type for them.",
    LONG_DECIMALS: "Decimals of more than 38 digits: columns have the bytes, since Arrow's and Spark's decimals do not "
    "hold them.",
    FIXED_UUID: "A UUID in a `fixed` of 16 bytes: columns have the bytes.",
    PLAIN: "A value that does not name its branch goes to the branch that fits its class best, and is refused where "
    "two named types fit alike; a Java datum knows `int` from `long` and its schema. Java reads the same value: "
    "a number, UUID or decimal is equal in each of its branches.",
    NAMES: "A record whose name is neither the reader's nor one of its aliases: Klamm refuses it, as the specification "
    "and Java's check of compatibility do; Java's reader does not compare the names of records outside of unions.",
    FULL_NAMES: "A union with several records of one short name: Klamm takes the one with the writer's full name, or "
    "alias, even if another would take the value too; Java takes another one if the first does not resolve, or the "
    "one in the same place if two unions have the same short names, and its check accepts any that does.",
    TEXT: "Bytes that are read as `string` and are not UTF-8: Klamm refuses them, Java replaces what is none.",
    FIELD_ALIASES: "Aliases of fields in a record whose namespace was moved without an alias, and where a default in "
    "the writer's schema has the old name: Klamm takes them, as Java's check does; Java's reader fails.",
    MOVED: "An enum or fixed whose namespace was moved without an alias, in a union: Klamm reads it by its short name, "
    "as outside of unions and as Java's check does; Java's reader does not.",
    MET: "A reader's alias by which a branch of the writer's union gets the name of another branch: Klamm reads each "
    "by its full name first, then by the alias; Java's reader, which renames the writer's types, fails.",
    NO_FIELDS: "A record without fields: `klamm load` refuses it, since a table needs columns.",
    RECURSIVE: "A type that contains itself has no columns: `poll_arrow` reads it record by record, Spark refuses it.",
    DEFAULTS: "A default that is no symbol of its enum, not of the size of its fixed, no bytes, or beyond a `float`: "
    "Klamm refuses the schema, Java's parser accepts it.",
    OTHER_DEFAULT: "A union's default that its first branch cannot hold (text beyond U+00FF as `bytes`, null as an "
    "enum): Klamm takes the first branch that fits, Java the first of its JSON type, and writes `?` or fails.",
    INSIDE: "A default that is a record which contains the field: Java's parser fails, since it does not have the "
    "record's fields yet; Klamm accepts it.",
    ASCII: "Names with letters beyond ASCII, and empty parts of a namespace: Klamm refuses the schema, as the "
    "specification does; the parser of Java's Avro 1.12 accepts them unless it is asked to be strict.",
    AHEAD: "A name that stands before its definition: Klamm accepts it, and registers the definition where the name "
    "stood; Java's parser does so, too, but fails where the field has a default.",
    TWICE: "A name that is defined twice in words that mean the same: Java accepts it, Klamm only in the same words.",
}

_LOGICAL: Final = re.compile(r"\([a-z-]+[^ ]*\) cannot be read as .*\([a-z-]+[^ ]*\)")
_TICKS: Final = (10**6, 10**3, 1)
"""Nanoseconds of the units."""


def explain(case: Case, difference: Difference, java: dict[str, Any]) -> str | None:
    """Returns the name of the rule by which a difference is wanted, None if there is none."""
    ours = difference.klamm
    if isinstance(ours, Refused) and not ours.expected:
        return None
    if difference.path == "schema":
        return of_java(str(difference.java)) or of_schema(ours)
    if isinstance(ours, Refused):
        return _refusal(case, difference, ours.why)
    if difference.path == "compatibility":
        return _compatibility(case, ours)
    if ours == "no columns":
        return RECURSIVE if _recursive(case) else None
    failed = isinstance(difference.java, dict) and "error" in difference.java
    if not failed and difference.path.endswith(("read", "lake")) and _fields_by_alias(case):
        return FIELD_ALIASES
    if isinstance(difference.java, dict) and "error" in difference.java:
        found = re.search(r"Found (?:[\w.]*\.)?(\w+), expecting union\[(.*)\]", difference.java["error"])
        if found is not None and found[1] in re.split(r"\W+", found[2]):
            return MOVED
        if "Duplicate in union" in difference.java["error"]:
            return MET
        known = re.search("missing required field|Invalid default for field", difference.java["error"])
        if known and (java["compatible"] or _fields_by_alias(case)):
            return FIELD_ALIASES
        return OTHER_DEFAULT if "is not in the enum symbol set" in difference.java["error"] else None
    if difference.path.endswith(("read", "lake")) and twins(case.reader) and isinstance(ours, pa.StructScalar):
        return FULL_NAMES
    if difference.path.endswith(("read", "lake")) and "3f" in (difference.java, *_branch_of(difference.java)):
        return OTHER_DEFAULT
    if difference.java == {"unreadable": ""} and _is_zero(ours):
        return NO_VALUE
    if isinstance(difference.java, dict) and _other_unit(difference.java, ours):
        return UNITS
    return None


def _branch_of(java: Any) -> tuple[Any, ...]:
    return tuple(java[1:]) if isinstance(java, list) else ()


def of_java(error: str) -> str | None:
    """Returns the rule of a schema that Java's parser refuses and Klamm accepts."""
    if "Schema fields not set yet" in error:
        return INSIDE
    return AHEAD if "UnresolvedSchema" in error else None


def of_schema(ours: Any) -> str | None:
    why = ours.why if isinstance(ours, Refused) else ""
    if "the default of" in why and re.search(
        r"is no enum|bytes, not the|is in no branch|so it is no (bytes|fixed)|is no float", why
    ):
        return DEFAULTS
    if "is defined twice" in why:
        return TWICE
    if "is no Avro name" in why and re.search(r"'\w*[^\x00-\x7f]\w*'|: '' is no Avro name", why):
        return ASCII
    return None


def _refusal(case: Case, difference: Difference, why: str) -> str | None:
    if _LOGICAL.search(why):
        return MEANINGS
    if "more digits than" in why:
        return DIGITS
    if difference.path == "records write plain" and ": name one" in why:
        return PLAIN
    if difference.path == "lake" and "has no fields" in why:
        return NO_FIELDS
    if "beyond what" in why and "holds" in why:
        logical = re.findall(r"(?:local-)?(?:timestamp|time)-[a-z]+", why)
        return ARROW if len(set(logical)) == 1 else UNITS
    if re.search(r"'utf-8' codec|Invalid UTF8|stream did not contain valid UTF-8", why):
        return TEXT
    if re.search(r"none of its aliases|record [\w.]+ is in no branch of", why) and difference.path.endswith(
        ("read", "lake")
    ):
        return NAMES
    if difference.path.endswith(("read", "lake")) and re.search(r"has \d+ bytes, not", why) and _fields_by_alias(case):
        return FIELD_ALIASES
    if "contains itself" in why or "cannot be read into columns" in why:
        return RECURSIVE if _recursive(case) else None
    return None


def _compatibility(case: Case, problems: list[str]) -> str | None:
    kinds = [bool(_LOGICAL.search(problem)) for problem in problems]
    if any(kinds) and all(
        kind or "is in no branch of" in problem for kind, problem in zip(kinds, problems, strict=True)
    ):
        return MEANINGS  # a record that cannot be read is in no branch, either
    if problems and twins(case.reader):
        return FULL_NAMES
    return None


def _recursive(case: Case) -> bool:
    return any(
        name in [node for node in nodes(schema) if isinstance(node, str)]
        for whole in (case.writer, case.reader)
        for name, schema in definitions(whole).items()
    )


def _fields_by_alias(case: Case) -> bool:
    """Returns True if the reader has a record with aliases of fields that has only its short name from the writer."""
    written = definitions(case.writer)
    for name, schema in definitions(case.reader).items():
        if schema["type"] == "record" and any("aliases" in field for field in schema["fields"]):
            known = {name, *schema.get("aliases", ())}
            short = name.rpartition(".")[2]
            if any(other not in known and other.rpartition(".")[2] == short for other in written):
                return True
    return False


def twins(reader: Any) -> bool:
    """Returns True if a union of the reader has two records of one short name, or alias."""
    names = definitions(reader)
    for node in nodes(reader):
        if isinstance(node, list):
            full = [one if isinstance(one, str) else one.get("name", "") for one in node]
            records = [names[name] for name in full if names.get(name, {}).get("type") == "record"]
            known = [name for one in records for name in (one["name"], *one.get("aliases", ()))]
            short = [name.rpartition(".")[2] for name in known]
            if len(set(short)) < len(short):
                return True
    return False


def _is_zero(ours: Any) -> bool:
    value = ours.as_py() if isinstance(ours, pa.Scalar) else ours
    return isinstance(value, Decimal) and not value


def _other_unit(java: dict[str, Any], ours: Any) -> bool:
    """Returns True if Klamm's time is Java's number, converted from another unit."""
    key = next(iter(java))
    if key not in ("instant", "local", "time", "unreadable") or isinstance(java[key], str) != (
        key in ("instant", "local")
    ):
        return False
    for read, written in product(_TICKS, _TICKS):
        stored = int(java[key]) if key == "unreadable" else int(java[key]) // read
        if read != written and _is_time(ours, stored * written // read, read):
            return True
    return False


def _is_time(ours: Any, number: int, tick: int) -> bool:
    """Returns True if Klamm's value is `number` times `tick` nanoseconds."""
    if isinstance(ours, pa.TimestampScalar):
        return bool(ours.value * 1000 == number * tick)
    value = ours.as_py() if isinstance(ours, pa.Scalar) else ours
    if isinstance(value, dt.datetime):
        since = value.replace(tzinfo=dt.UTC) - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
        return since // dt.timedelta(microseconds=1) * 1000 == number * tick
    if isinstance(value, dt.time):
        since = dt.datetime.combine(dt.date(1970, 1, 1), value, dt.UTC) - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
        return since // dt.timedelta(microseconds=1) * 1000 == number * tick
    return type(value) is int and value == number
