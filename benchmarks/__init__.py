"""What the yard costs, each figure beside the floor that it was measured against.

`python -m benchmarks` from the root of the repository; README.md has one command for each.
"""
