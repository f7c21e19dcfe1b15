"""Support for running the suite itself: order of the tests, leaked sockets, the wheel."""
