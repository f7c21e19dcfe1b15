"""Third-party codecs that a client declares: a suffix of ClientSoftwareVersion in its ApiVersions request.

`0.1.0-codecs.5.6` says that the client reads the codec ids 5 and 6 besides Kafka's own four (design, section 5). The
form uses only characters that KIP-511 allows: letters, digits, `-` and `.`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

THIRD_PARTY_CODECS = frozenset({5, 6, 7})

_SUFFIX = re.compile(r"-codecs((?:\.[5-7])+)\Z")


def declare_codecs(version: str, codec_ids: Iterable[int]) -> str:
    """Returns the software version with the third-party ids among `codec_ids` declared; unchanged if there are none."""
    ids = sorted(THIRD_PARTY_CODECS.intersection(codec_ids))
    return version + "-codecs" + "".join(f".{codec_id}" for codec_id in ids) if ids else version


def declared_codecs(version: str) -> frozenset[int]:
    """Returns the third-party codec ids that a software version declares; none for any other text."""
    found = _SUFFIX.search(version)
    return frozenset(int(digit) for digit in found[1].split(".")[1:]) if found else frozenset()
