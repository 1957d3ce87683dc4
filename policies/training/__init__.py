"""Training of policies on demonstrations: data, augmentation, loss, loop, report."""
