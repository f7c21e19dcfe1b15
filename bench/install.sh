#!/usr/bin/env bash
# What `make bench` needs besides .venv: requirements/bench.txt, a C compiler, RabbitMQ and
# ActiveMQ (Debian's packages), the jars of Kafka and MirrorMaker (from Maven Central, into var/bench/kafka and
# var/bench/mirrormaker), and for the broker that is measured an environment with what it needs and nothing else
# (var/bench/venv), with this tree's Klamm, compiled.
set -euo pipefail
cd "$(dirname "$0")/.."

die() { echo "bench: $*" >&2; exit 1; }

apt_install() { # apt_install PACKAGE...
  command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ] || return 1
  echo "bench: installing the system packages $*"
  { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$@"; } \
    >/dev/null 2>&1
}

command -v gcc >/dev/null 2>&1 || { apt_install gcc libc6-dev && command -v gcc >/dev/null 2>&1; } \
  || die "gcc is missing; install the system package gcc"
command -v mvn >/dev/null 2>&1 || { apt_install maven && command -v mvn >/dev/null 2>&1; } \
  || die "mvn is missing; install the system package maven"

# Only their programs: `make bench` starts instances of its own, so the packages' services are kept from starting.
if [ ! -x /usr/lib/rabbitmq/bin/rabbitmq-server ] || [ ! -e /usr/share/java/activemq-run.jar ]; then
  policy=/usr/sbin/policy-rc.d
  if [ "$(id -u)" = 0 ] && [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' > "$policy" && chmod 755 "$policy"
  fi
  apt_install rabbitmq-server activemq && [ -e /usr/share/java/activemq-run.jar ] \
    || die "RabbitMQ or ActiveMQ is missing; install the system packages rabbitmq-server and activemq"
fi

if [ "$(cat .venv/bench.txt 2>/dev/null)" != "$(cat requirements/bench.txt)" ]; then
  .venv/bin/python -m pip install -q --disable-pip-version-check -r requirements/bench.txt
  cp requirements/bench.txt .venv/bench.txt
fi

fetch_jars() { # fetch_jars POM FOLDER
  local now
  now=$(sha256sum < "$1")
  [ "$(cat "$2/pom.sha256" 2>/dev/null)" = "$now" ] && return
  echo "bench: fetching the jars of $1"
  rm -rf "$2" && mkdir -p "$2"
  mvn -q -B -f "$1" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$PWD/$2" \
    || die "Maven could not fetch the jars of $1"
  echo "$now" > "$2/pom.sha256"
}
fetch_jars bench/pom.xml var/bench/kafka
fetch_jars bench/mirrormaker/pom.xml var/bench/mirrormaker

# The broker under test. Built from a copy: a build in the tree would leave its folder there.
venv=var/bench/venv
sources() { find core hadoop plugins schemas testing docs examples src/klamm -type f ! -name '*.pyc' ! -name '*.so' -print0 | sort -z; }
needs=$(cat requirements/base.txt requirements/build.txt | sha256sum)
if [ "$(cat "$venv/needs.sha256" 2>/dev/null)" != "$needs" ]; then
  echo "bench: making $venv"
  rm -rf "$venv" && .venv/bin/python -m venv "$venv"
  "$venv/bin/python" -m pip install -q --disable-pip-version-check -r requirements/base.txt
  echo "$needs" > "$venv/needs.sha256"
fi
now=$( { sources | xargs -0 sha256sum; sha256sum pyproject.toml setup.py README.md; } | sha256sum)
if [ "$(cat "$venv/klamm.sha256" 2>/dev/null)" != "$now" ]; then
  copy=var/bench/copy
  rm -rf "$copy" && mkdir -p "$copy"
  tar -ch --exclude=__pycache__ --exclude='*.so' --exclude='*.egg-info' pyproject.toml setup.py README.md src docs examples | tar -x -C "$copy"
  .venv/bin/python -m pip wheel -q --disable-pip-version-check --no-build-isolation --no-deps -w "$copy/dist" "$copy"
  "$venv/bin/python" -m pip install -q --disable-pip-version-check --no-deps --force-reinstall "$copy"/dist/klamm-*.whl
  "$venv/bin/python" -c 'import klamm.core.records._native' || die "the compiled module was not built"
  rm -rf "$copy"
  echo "$now" > "$venv/klamm.sha256"
fi
