"""The nouns of the yard: ids, jobs, nodes, tenants, verdicts and end reasons. Data, no I/O."""
