"""What the documentation shows of the runs that docs/figures keeps."""
