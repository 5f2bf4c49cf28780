"""The door to the GPUs: what NVML says of them, who uses them, how a container gets them.

NVML is read in a child process (`prober`, `child`), so that a hang or a crash in the driver costs
a sample and not the node; `simulation` stands in for it where there is no GPU.
"""
