"""Many episodes of a policy: suites, workers, results for people and machines."""
