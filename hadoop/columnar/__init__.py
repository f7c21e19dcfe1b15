"""A load's rows from the brokers to Parquet files without Spark's rows: Arrow columns all the way.

If Spark runs on one machine (`local[…]`, as `klamm load` starts it), its tasks do their work in Python:

    chunks.py   read ranges of offsets, decode them, leave the rows on disk, apart by directory
    files.py    write the rows of one directory as Parquet files, read them back and count
    job.py      both, one after the other; which rows go to which file is decided between them

What the JVM would do in between (rows from Arrow, a shuffle, a sort, Parquet in Java) takes several times the processor
time. The result is the same: a directory's rows in one file, ordered by partition and offset.
"""
