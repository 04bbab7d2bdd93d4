"""The kubelet's counterpart: advertises what exists, prefers what was promised, reports what was given.
An id lives as long as its slice, never longer.
It never decides who gets what.
"""
