"""The report of a run of the demo: its timeline, the picture of it, and the HTML file."""
