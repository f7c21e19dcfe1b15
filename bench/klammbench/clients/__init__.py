"""Client programs, each run in a process of its own: `python -m klammbench.clients CLIENT produce|consume JOB`.

A job is a JSON object (`job.Job`), and so is the result on standard output (`job.Took`). Every client has the same
settings, under its own names for them, and measures the same time: from the call that sends the first record to the
acknowledgement of the last, or from the first received records to the last.
"""
