"""The audit as web pages and as a REST endpoint, `klamm audit serve`, which needs the extra `web`; and as one file,
`klamm audit --html`, which does not."""
