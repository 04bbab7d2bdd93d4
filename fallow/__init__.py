"""The command: wires rooms into processes, and shows people what they do.
No decision is taken here.

"""
