"""Images as people have them on disk, and as one tensor of bytes."""
