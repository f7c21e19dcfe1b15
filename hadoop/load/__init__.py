"""The load job: plan, read, write, publish, report."""
