"""Client programs, each run in a process of its own: `python -m klammbench.clients CLIENT produce|consume JOB`.

A job is a JSON object (`job.Job`); what comes back on standard output is one too (`job.Took`). Every client is given
the same settings in its own words, and counts the same way: from the call that hands over the first record to the
acknowledgement of the last, or from the first records received to the last ones.
"""
