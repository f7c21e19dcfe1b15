# Klamm. `make` prints what there is to make.

PY := .venv/bin/python
FAULTS := PYTHONPATH=tests/support $(PY) tests/faults/campaign.py
# Images with Python often set it. Each process of a test would compile Klamm anew, which is half of a broker's start.
unexport PYTHONDONTWRITEBYTECODE
.DEFAULT_GOAL := help
.PHONY: alerts fuzz sim mirror-sim sink-sim audit-truth avro-judge registry-differences registry-avro-pairs registry-clients guarantees native-twin sanitize help setup demo test lint clients faults bench bench-compare bench-load audit-pictures wheel clean faults-load faults-cluster faults-mirror

help: ## what there is to make
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup: ## .venv with pinned versions; done by the others themselves
	@scripts/setup.sh kcat=kcat 'chromium=chromium?' 'etcd=etcd-server?'

demo: ## the whole pipeline on 336,776 real flights, through a live cluster and one that mirrors it (PLANT=lost or PLANT=doubled plants an anomaly; LAKE=file without HDFS)
	@scripts/setup.sh
	@.venv/bin/klamm demo $(if $(PLANT),--plant $(PLANT)) $(if $(LAKE),--lake $(LAKE))

test: setup ## the test suite (FAST=1 the inner loop, without JVMs and costly files; COSTS=1 measures; ARGS=... go to pytest)
	@$(PY) -m pytest -n 6 --dist loadfile $(if $(FAST),--fast) $(if $(COSTS),--record-costs) $(ARGS)  # most of it waits: six processes on two cores

lint: setup ## style, imports, types
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/lint-imports
	@.venv/bin/mypy

clients: setup ## four foreign clients, 100,000 records with each codec (ONLY=kcat CODECS=zstd RECORDS=1000)
	@PYTHONPATH=tests/support $(PY) tests/clients/campaign.py $(if $(ONLY),--only $(ONLY)) $(if $(CODECS),--codecs $(CODECS)) $(if $(RECORDS),--records $(RECORDS))

faults: setup ## the log and the broker damaged in every way (ONLY=name QUICK=1 PLANT=1 must fail; SEED=n AT=n replays)
	@scripts/setup.sh $$($(FAULTS) $(ONLY) --tools)
	@$(FAULTS) $(ONLY) $(if $(PLANT),--plant) $(if $(SEED),--seed $(SEED)) $(if $(AT),--at $(AT)) $(if $(QUICK),--quick) $(if $(REPORT),--report $(REPORT))

faults-load: setup ## loads into a real HDFS by real Spark, killed, cut off and overtaken (the same variables as faults)
	@scripts/setup.sh $$($(FAULTS) --loads $(ONLY) --tools)
	@$(FAULTS) --loads $(ONLY) $(if $(PLANT),--plant) $(if $(SEED),--seed $(SEED)) $(if $(AT),--at $(AT)) $(if $(QUICK),--quick) $(if $(REPORT),--report $(REPORT))

faults-cluster: setup ## three replicating brokers killed, paused, cut off and with bad disks (the same variables as faults; SOAK=minutes JOBS=n)
	@scripts/setup.sh $$($(FAULTS) --cluster $(ONLY) --tools)
	@$(FAULTS) --cluster $(ONLY) $(if $(SOAK),--soak $(SOAK)) $(if $(JOBS),--jobs $(JOBS)) $(if $(PLANT),--plant) $(if $(SEED),--seed $(SEED)) $(if $(AT),--at $(AT)) $(if $(QUICK),--quick) $(if $(REPORT),--report $(REPORT))

faults-mirror: setup ## a cluster that mirrors another one, both killed and cut off (the same variables as faults; JOBS=n)
	@scripts/setup.sh $$($(FAULTS) --mirror $(ONLY) --tools)
	@$(FAULTS) --mirror $(ONLY) $(if $(JOBS),--jobs $(JOBS)) $(if $(PLANT),--plant) $(if $(SEED),--seed $(SEED)) $(if $(AT),--at $(AT)) $(if $(QUICK),--quick) $(if $(REPORT),--report $(REPORT))

sim: setup ## the replication protocol under 100,000 schedules of faults, and planted bugs that it must find (QUICK=1 SCHEDULES=n SEED=n ONLY=schedules or mutations)
	@PYTHONPATH=tests/support $(PY) -m klammsim $(if $(QUICK),--quick) $(if $(SCHEDULES),--schedules $(SCHEDULES)) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY))

mirror-sim: setup ## a mirrored partition under 100,000 random schedules, and planted bugs that they must find (QUICK=1 SCHEDULES=n SEED=n ONLY=schedules or mutations)
	@PYTHONPATH=tests/support $(PY) -m klammsim.mirror_campaign $(if $(QUICK),--quick) $(if $(SCHEDULES),--schedules $(SCHEDULES)) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY))

sink-sim: setup ## the Spark sink's attempts under 100,000 random schedules, and planted bugs that they must find (QUICK=1 SCHEDULES=n SEED=n ONLY=schedules or mutations)
	@PYTHONPATH=tests/support $(PY) -m klammtest.sink_sim $(if $(QUICK),--quick) $(if $(SCHEDULES),--schedules $(SCHEDULES)) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY))

audit-truth: setup ## faults planted in seeded runs, and what the audit says of each (RUNS=100 SEED=n ONLY=losses AT=n; PLANT=1 must fail; REPORT=docs/audit.md); HISTORIES=n: random histories in memory
	@PYTHONPATH=tests/support $(PY) -m klammtest.audit_truth $(ONLY) $(if $(RUNS),--runs $(RUNS)) $(if $(HISTORIES),--histories $(HISTORIES)) $(if $(SEED),--seed $(SEED)) $(if $(AT),--at $(AT)) $(if $(PLANT),--plant) $(if $(REPORT),--report $(REPORT))

avro-judge: setup ## records, columns, Spark, loads and the compatibility check beside Java's Avro, 20,000 generated cases (QUICK=1 CASES=n SEED=n AT=n; PLANT=1 plants defects, each of which must be found)
	@scripts/setup.sh javac=openjdk-17-jdk-headless mvn=maven
	@PYTHONPATH=tests/support $(PY) -m klammtest.avro_judge $(if $(QUICK),--quick) $(if $(CASES),--cases $(CASES)) $(if $(SEED),--seed $(SEED)) $(if $(AT),--at $(AT)) $(if $(PLANT),--plant) $(if $(SPARK),--spark $(SPARK)) $(if $(REPORT),--report $(REPORT))

fuzz: setup ## random schemas, and random histories of requests to two registries: the suite's, TIMES=20 times as many
	@KLAMM_FUZZ=$(or $(TIMES),20) $(PY) -m pytest -q --no-header -p no:cacheprovider tests/schemas/test_fuzz.py tests/schemas/service/test_histories.py $(ARGS)

registry-differences: setup ## compatibility of JSON and Protobuf schemas beside Confluent's examples (JUDGE=folder with its diff-*.json)
	@PYTHONPATH=tests/support $(PY) -m klammtest.registry_differences $(JUDGE)

registry-avro-pairs: setup ## the registry's Avro beside Confluent's own AvroSchema: 10,000 generated pairs (QUICK=1 CASES=n SEED=n AT=n; PLANT=1 plants defects, each of which must be found)
	@scripts/setup.sh javac=openjdk-17-jdk-headless mvn=maven
	@PYTHONPATH=tests/support $(PY) -m klammtest.registry_avro $(if $(QUICK),--quick) $(if $(CASES),--cases $(CASES)) $(if $(SEED),--seed $(SEED)) $(if $(AT),--at $(AT)) $(if $(PLANT),--plant)

registry-clients: setup ## seven foreign registry clients against a broker with its registry, and each one's records read by others (ONLY=name,name WITHOUT=name)
	@PYTHONPATH=tests/support $(PY) -m klammtest.registry_clients $(if $(ONLY),--only $(ONLY)) $(if $(WITHOUT),--without $(WITHOUT))

alerts: setup ## each alert of examples/alerts.yaml raised once on real brokers, a line for each; Prometheus' promtool evaluates the rules
	@scripts/setup.sh promtool=prometheus
	@PYTHONPATH=tests/support $(PY) -m klammtest.alerts

guarantees: setup ## what Klamm never does, a line for each (ONLY=A is a letter; PLANT=1 plants a fault in each, which it must find)
	@$(PY) -m pytest -q --no-header -p no:cacheprovider -n 2 --guarantees $(or $(ONLY),ABCDE) $(if $(PLANT),--plant) $(ARGS)

native-twin: setup ## the compiled module against its twin in Python (BATCHES=n SEED=n)
	@PYTHONPATH=tests/support $(PY) -m klammtest.native.batches $(if $(BATCHES),--batches $(BATCHES)) $(if $(SEED),--seed $(SEED))

sanitize: setup ## the compiled module built with the sanitizers, against its twin and mutated batches (BATCHES=n SEED=n)
	@PYTHONPATH=tests/support $(PY) -m klammtest.native.sanitized $(if $(BATCHES),--batches $(BATCHES)) $(if $(SEED),--seed $(SEED))

bench: setup ## Klamm beside Apache Kafka and others, docs/benchmarks.md (QUICK=1 ONLY=b,c ROUNDS=n; REPORT=1 writes it anew); ONLY=registry: the schema registry alone, docs/registry.md; ONLY=mirror: a mirror beside MirrorMaker 2, docs/mirror.md (DATA=/dev/shm)
	@$(if $(filter registry,$(ONLY)),,bench/install.sh)
	@PYTHONPATH=bench:tests/support $(PY) -m $(if $(filter registry mirror,$(ONLY)),klammbench.$(ONLY) $(if $(QUICK),--quick) $(if $(REPORT),--report) $(if $(filter mirror,$(ONLY)),$(if $(DATA),--data $(DATA))),klammbench $(if $(QUICK),--quick) $(if $(ONLY),--only $(ONLY)) $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(REPORT),--report $(REPORT)))

bench-compare: setup ## this tree's broker beside another clone's, in turns and many starts (BEFORE=../old-clone ONLY=b,c,d,f,g,h,reads CELLS=consume ROUNDS=30 LIMIT=0.03 DATA=/dev/shm/compared): exit 1 if a cell is more than 3 % worse
	@bench/install.sh
	@PYTHONPATH=bench:tests/support $(PY) bench/compare_commits.py $(BEFORE) $(if $(ONLY),--only $(ONLY)) $(if $(CELLS),--cells "$(CELLS)") $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(LIMIT),--limit $(LIMIT)) $(if $(DATA),--data $(DATA))

bench-load: setup ## loads and streams beside Spark's own Kafka connector (QUICK=1 ONLY=file,stream RECORDS=n ROUNDS=n; REPORT=1 writes the page)
	@PYTHONPATH=bench $(PY) -m klammbench.load $(if $(QUICK),--quick) $(if $(ONLY),--only $(ONLY)) $(if $(RECORDS),--records $(RECORDS)) $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(REPORT),--report $(REPORT))

audit-pictures: setup ## the pictures of the audit's page and of the demo's report in docs/, by headless Chromium
	@scripts/setup.sh chromium=chromium
	@PYTHONPATH=tests/support $(PY) -m klammtest.pages.audit_page docs
	@PYTHONPATH=tests/support $(PY) -m klammtest.pages.demo_report docs

wheel: setup ## dist/klamm-*.whl
	@rm -rf build  # setuptools would take stale modules from it
	@$(PY) -m build --wheel --no-isolation

clean: ## everything that was made
	@rm -rf .venv dist build var src/*.egg-info
