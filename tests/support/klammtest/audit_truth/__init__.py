"""Proof that the audit tells the truth: faults planted in seeded runs, and what the report says of each.

A run has a topic of its own, real producers, consumers and loads, clients of other makers, and one fault of its kind
(or ordinary events only). What happened is known from elsewhere: the application's futures, the records in the log, the
rows in the lake's files. `python -m klammtest.audit_truth` (`make audit-truth`) compares that with the report, window
by window and tier by tier.
"""
