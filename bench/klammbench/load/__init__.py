"""`make bench-load`: Klamm's load and Spark source beside Spark's own Kafka connector (docs/benchmarks-load.md).

    PYTHONPATH=bench .venv/bin/python -m klammbench.load [--quick] [--only file,hdfs] [--rounds 3]

One broker (Klamm's), one topic of real flights in Avro, one HDFS: everything that is compared reads the same bytes, one
after the other, and writes the same columns into the same directories. The harness of `make bench` runs the rounds and
judges (`rounds.py`, `table.py`, `targets.py`).

    site.py      the broker, the topics, the HDFS
    jobs/        what is measured: each a process of its own, which writes when it did what into a file
    measure.py   runs one of them and adds up what it and its descendants cost
    shape.py     the cells, and what is wanted
"""
