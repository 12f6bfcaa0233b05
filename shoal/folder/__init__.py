"""What a training leaves behind, written and read."""
