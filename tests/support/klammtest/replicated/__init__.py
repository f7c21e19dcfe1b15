"""Several real brokers as one cluster: processes, networks, disks, clients and observers."""
