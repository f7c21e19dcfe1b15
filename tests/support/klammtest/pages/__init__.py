"""Pages of the docs: runs their examples, makes their pictures, and writes figures into them."""
