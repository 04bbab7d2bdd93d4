"""What a GPU is, how it is cut, and who fits where: values that never change, and functions on them.
Every part of Fallow asks this room the same questions, so the arithmetic exists once.
Standard library only; the one door to real hardware is nvml.py.
"""
