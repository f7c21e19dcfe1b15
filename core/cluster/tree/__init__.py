"""The cluster's tree in the coordination: its paths, the data of each, its base paths, and requests as generators."""
