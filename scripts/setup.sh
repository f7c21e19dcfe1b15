#!/usr/bin/env bash
# Makes .venv with everything that `make demo` and `make test` need, versions pinned in requirements/.
# Needs Python >= 3.11 and Java >= 17; installs a missing Debian package itself where it may, else names it. Maven, where it
# can be had, brings the jars of HDFS.
set -euo pipefail
cd "$(dirname "$0")/.."
unset PYTHONPATH PYTHONHOME  # pip would count what it finds there as installed

die() { echo "setup: $*" >&2; exit 1; }

apt_install() { # apt_install PACKAGE: fails quietly where this machine or this user cannot
  command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ] || return 1
  echo "setup: installing the system package $1"
  { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$1"; } \
    >/dev/null 2>&1
}

need() { # need COMMAND PACKAGE
  command -v "$1" >/dev/null 2>&1 || { apt_install "$2" && command -v "$1" >/dev/null 2>&1; } \
    || die "$1 is missing; install the system package $2"
}

python=""
for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11; do
  if command -v "$candidate" >/dev/null 2>&1 \
    && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    python=$candidate
    break
  fi
done
[ -n "$python" ] || die "no Python >= 3.11 found; install the system package python3 (3.11 or newer) or set PYTHON=..."

need java openjdk-17-jre-headless # Spark and ZooKeeper run on it
major=$(java -XshowSettings:properties -version 2>&1 | sed -n 's/ *java.specification.version = \([0-9]*\).*/\1/p')
[ "${major:-0}" -ge 17 ] || die "Java $major found, 17 or newer is needed; install openjdk-17-jre-headless"

for wanted in "$@"; do # extra system packages, COMMAND=PACKAGE; COMMAND=PACKAGE? where it is not there, its tests are skipped
  case $wanted in
    *'?') wanted=${wanted%'?'}
      command -v "${wanted%%=*}" >/dev/null 2>&1 || apt_install "${wanted##*=}" \
        || echo "setup: no ${wanted%%=*} (system package ${wanted##*=}); its tests are skipped" >&2 ;;
    *) need "${wanted%%=*}" "${wanted##*=}" ;;
  esac
done

stamp=.venv/requirements.sha256
now=$(cat requirements/*.txt pyproject.toml setup.py core/records/native/* scripts/setup.sh | sha256sum)
if [ ! -x .venv/bin/klamm ] || [ "$(cat "$stamp" 2>/dev/null)" != "$now" ]; then
  echo "setup: making .venv with $($python --version) (a few minutes the first time)"
  $python -m venv .venv || { apt_install python3-venv && $python -m venv .venv; } \
    || die "cannot make a virtual environment; install the system package python3-venv"
  .venv/bin/python -m pip install -q --disable-pip-version-check -r requirements/build.txt
  .venv/bin/python -m pip install -q --disable-pip-version-check \
    -r requirements/base.txt -r requirements/web.txt -r requirements/spark.txt -r requirements/dev.txt
  .venv/bin/python -m pip install -q --disable-pip-version-check --no-build-isolation --no-deps -e .
  # Spark's Python workers import pyspark from a zip of sources alone, and each would compile them anew: half of its
  # start, for which Spark allows 10 s (PythonWorkerFactory). With bytecode in the zip they do not. The new zip takes the
  # place of the old one when it is whole; -I keeps what lies in the working directory out of this.
  venv=$PWD/.venv/bin/python
  spark=$("$venv" -I -c 'import pyspark, os; print(os.path.dirname(pyspark.__file__))')/python/lib/pyspark.zip
  unzipped=$(mktemp -d)
  trap 'rm -rf "$unzipped"' EXIT
  (
    cd "$unzipped"
    "$venv" -I -m zipfile -e "$spark" .
    "$venv" -I -W ignore -m compileall -q -b -x /tests/ --invalidation-mode unchecked-hash -p "$spark" pyspark
    "$venv" -I -m zipfile -c "$spark.new" pyspark
    mv "$spark.new" "$spark"
  )
  echo "$now" > "$stamp"
fi

# The jars of a small HDFS, once. Without them everything else works: what needs them says so itself.
if [ "${KLAMM_NO_HDFS:-}" != 1 ] && ! .venv/bin/python -m klamm.hadoop.hdfs.jars --have; then
  command -v mvn >/dev/null 2>&1 || apt_install maven || true
  .venv/bin/python -m klamm.hadoop.hdfs.jars || echo "setup: no HDFS on this machine; KLAMM_NO_HDFS=1 leaves its tests out" >&2
fi

# Spark's Avro package, once: for lakes with `format: avro`.
if ! .venv/bin/python -m klamm.hadoop.avro.jar --have; then
  .venv/bin/python -m klamm.hadoop.avro.jar || echo "setup: no lakes in Avro on this machine; their tests are skipped" >&2
fi

# Spark's classes in a form that Java maps into memory, once: each load and each test that starts a Spark is quicker by it.
.venv/bin/python -m klamm.hadoop.class_archive || true
