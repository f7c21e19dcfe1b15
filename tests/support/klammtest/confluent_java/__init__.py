"""Confluent's Java client and its `AvroSchema`, from Flink's connector: a `pom.xml` for Maven, a judge of schemas."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from klamm.core.maven import MavenJars

JARS: Final = MavenJars(
    "Confluent's classes in Flink's jar",
    "klammtest.confluent_java",
    "confluent-java",
    "KLAMM_CONFLUENT_JARS",
    " (40 MB)",
)
JUDGE: Final = Path(__file__).parent / "ConfluentAvro.java"
