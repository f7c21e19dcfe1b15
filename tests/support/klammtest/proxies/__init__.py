"""TCP proxies that inject faults between a client and its server."""
