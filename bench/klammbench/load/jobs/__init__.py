"""The measured programs. Each takes its parameters as JSON and writes its marks (see `marks.py`)."""
