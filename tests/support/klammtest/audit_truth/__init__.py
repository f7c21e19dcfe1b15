"""Proof that the audit tells the truth: seeded runs with planted faults, and what the report says about each.

A run has a topic of its own, real producers, consumers and loads, foreign clients, and one fault of its kind (or
ordinary events only). The truth comes from other sources: the application's futures, the records in the log, the rows
in the lake's files. `python -m klammtest.audit_truth` (`make audit-truth`) compares it with the report, window by
window and tier by tier.
"""
