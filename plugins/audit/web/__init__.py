"""The audit as web pages and as a REST endpoint: `klamm audit serve`. Needs the extra `web`."""
