"""NVIDIA's device-plugin configuration file: read as it is, every fault named, turned into what this node sells.

Pure. It never asks the driver and never changes anything.
"""
