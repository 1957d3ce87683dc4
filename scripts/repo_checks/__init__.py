"""What must hold of this repository. Each check takes a root folder and returns its faults."""
