"""`klamm demo`: the whole pipeline on real flights."""
