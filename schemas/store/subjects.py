"""Names of subjects. `:.c:name` is the subject `name` of the context `.c`; a name without a context is of the context
`.`. `:.c:` alone stands for the context, for its configuration and mode. Ids are counted in each context.
"""

from __future__ import annotations

from typing import Final

DEFAULT_CONTEXT: Final = "."
GLOBAL_CONTEXT: Final = ".__GLOBAL"
"""Has a configuration and a mode that hold for all contexts, and no subjects."""
GLOBAL: Final = f":{GLOBAL_CONTEXT}:"
ALL_CONTEXTS: Final = ":*:"
_RESERVED: Final = frozenset({"__GLOBAL", "__EMPTY"})


def split(subject: str) -> tuple[str, str]:
    """Returns the context and the name within it."""
    if subject.startswith(":."):
        context, _, name = subject[1:].partition(":")
        return context, name
    if subject.startswith(ALL_CONTEXTS):
        return "*", subject[len(ALL_CONTEXTS) :]
    return DEFAULT_CONTEXT, subject


def context_of(subject: str) -> str:
    return split(subject)[0]


def qualified(context: str, name: str) -> str:
    """Returns the subject of a name within a context."""
    return name if context == DEFAULT_CONTEXT else f":{context}:{name}"


def beside(parent: str, subject: str) -> str:
    """Returns the subject that a reference of `parent` names: one without a context is in the parent's."""
    context, name = split(subject)
    return qualified(context_of(parent), name) if context == DEFAULT_CONTEXT else subject


def is_valid(subject: str, *, for_config: bool = False) -> bool:
    """Returns False for control characters and reserved names; the global context is for configuration and modes."""
    context, name = split(subject)
    if any(ord(char) < 32 or 127 <= ord(char) < 160 for char in subject) or name in _RESERVED:
        return False
    return for_config or context != GLOBAL_CONTEXT


def in_scope(scope: str, subject: str) -> bool:
    """Returns True if `scope` is the subject, its context, or the global context."""
    context, name = split(scope)
    return scope == subject or (not name and context in (GLOBAL_CONTEXT, context_of(subject)))
