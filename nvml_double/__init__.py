"""A stand-in for libnvidia-ml.so.1 with the rules of the real one, for machines without a GPU.
Its GPUs live in one file that all processes of a pretend node share.
For tests and demonstrations; never deployed.
"""
