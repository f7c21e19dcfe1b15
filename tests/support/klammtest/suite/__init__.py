"""What the run of the suite itself needs: its order, leaked sockets, the wheel."""
